// Package singleflight avoids duplicate work: of the callers that want the same thing at the same
// time, one does the work, and the others wait for its result.
//
// [Group] does that within a process, for any function.
//
// [Loader] does it for a whole fleet, in the case that needs it most: a key that many callers want
// is no longer in the cache. Without help, each process or even each request then asks the
// database. With a Loader, only one does:
//
//	query := func(ctx context.Context, key string) (User, error) { … }
//	users := singleflight.NewLoader(redisv9.New(client), cache, query)
//	user, err := users.Load(ctx, "user/42")
//
// The cache can be an adapter's, such as redisv9.NewCache(client, …), or anything else with Get
// and Set methods: see [Cache]. A backend that is down costs coordination, not availability:
// values are then loaded without it, unless [WithFailClosed] is used. Call [Loader.Close] before
// the process ends, so that it leaves no lock behind. [Recipes] has a whole service with one.
//
// [Fleet] does for the fleet what a Group does in a process: of the calls that are made at the same
// time one runs, and nothing is kept for longer than a moment.
//
// # Which to use
//
// Use a Group if the result is cheap enough to compute once in each process. Use a Loader if it
// should be computed once in the fleet, kept in a cache, and all may share it, and its
// [Loader.LoadMany] for lists. Use a Fleet if it should be computed once but not kept. Use a lock if each caller has to do
// the work itself, one at a time: [locker.Do], with package cohort around the backend's Locker if
// many goroutines want the lock.
//
// # Sources
//
// The context of a source has the values of the first caller's, but not its cancellation: a load whose
// callers have all left goes on and is stored. It ends only when no caller waits any more and either
// [WithMaxHold] has passed or [Loader.Forget] or [Loader.Close] was called.
//
// It carries the lease of the load (see [locker.FromContext]), and the first caller's leases until that
// caller leaves. The [locker.ErrDeadlock] that results from the latter reaches no caller without them:
// such a caller loads again. So what a source gets from another Loader on the same Locker, for a key whose
// lock is that of its own load, is what is in that Loader's cache, or otherwise ErrDeadlock with both
// keys. Calling Load for the same key on the same Loader is an error.
//
// This is not noticed, and the callers wait until their contexts end or [WithMaxWait] is over: sources
// that wait for each other over different Lockers, in different processes, without the context that they
// were given, or in a cycle of loads of several keys that different callers have begun.
//
// # Errors
//
// An error of the source goes unchanged to the callers that waited for that load and is not
// cached. If the Cache is a slots.Keeper, processes that waited for it return it too, as a
// [*RemoteError], unless it is that of a context or due to a lease of the first caller. Otherwise
// processes that wait for the lock try one at a time, but none waits for more than three such loads,
// or five seconds if that is longer: a process that has seen two locks released without a value, a
// second apart or more, calls the source itself, within the time that the second load took. The same
// holds when the cache refuses the value. This bound does not depend on the number of processes. It requires a Locker that is a
// [locker.Watcher]; otherwise [WithMaxWait] is the bound. A process whose own value was refused
// loads that key without the lock, one load at a time, for [WithOutagePause].
//
// # Outages
//
// If the backend of the locks or of the cache does not answer, Load calls the source without it;
// with [WithFailClosed] it returns the error instead. A request may take up to
// [WithBackendTimeout], but no longer than half of the time until the deadline of the caller that
// began the load, or a quarter of that timeout if that is longer. A caller that joins a load
// waits for the same request: if it has less time it leaves with its ctx's error. Once a request
// has not been answered the backend is left alone, for all callers, until a probe in the
// background is answered; the first follows after [WithOutagePause]. Callers start the probes: if
// none has done so for ten times the sum of that pause and the timeout (half a minute with the
// defaults), the next callers ask the backend themselves. If the backend has answered requests
// for other keys in the last quarter of its timeout, only this key is loaded without it. An error
// that is an answer, such as that of an entry that cannot be decoded, concerns one load only. An
// error of storing the value does not reach Load; see [WithLoadObserver].
//
// So one backend timeout after the first request to a backend that hangs, or sooner, later
// callers are served by the source, whatever their deadlines. This requires that requests return
// when their contexts end. One that does not is noticed a quarter of the timeout after that, or
// when a caller that waits for it leaves, if that is later. Callers that cannot leave wait until
// it returns, and if no caller of the key can leave, the hang is not noticed until then: give
// Load a ctx with a deadline if the client of a backend may hang.
//
// A Loader remembers for some seconds what happened to a key, by ten bits of the key's hash: that
// it was forgotten, its value refused, or its server silent. About one in 1,000 of the other keys
// is then treated in the same way, which costs it requests or the coordination with other
// processes.
//
// # Invalidation
//
// A Loader does not know when the source changes. Make changes with [Loader.Update], which holds
// the key's lock while it makes the change and deletes the old value from the cache. If all
// writers do that, this holds once Update has returned without an error, apart from the
// exceptions below:
//
//   - In this process no Load that begins later returns the old value.
//   - No load that holds the key's lock stores the old value, in any process. Update waits for
//     those in progress, including refreshes of stale values, and deletes what they have stored.
//   - In another process a Load that begins later may still return the old value if it joins a
//     Load that began to read the cache before the deletion. That ends with the read, which takes
//     at most one [WithBackendTimeout].
//
// The lock cannot order loads that do not hold it. In another process, such a load may read the
// source before the change and store the value after the deletion. A cache that is a slots.Keeper,
// as the caches of the adapters are, prevents that: a load takes a version with its miss, and the
// cache refuses the value if the key was stored or deleted since. What remains are loads during which
// the cache does not answer, or whose key cannot have a version. With another cache these are loads
//
//   - of a process for which the backend of the locks does not answer, or which could not read
//     the cache. With [WithFailClosed] that is an error instead;
//   - of a process that calls the source itself after it has waited for [WithMaxWait], has seen
//     two locks released without a value, or, for [WithOutagePause], was refused by the cache
//     when it stored one;
//   - that have lost their lock because the process was stopped for longer than [WithLockTTL],
//     because the source took longer than [WithMaxHold], or because the backend lost it by an
//     eviction, a failover or a restart without its data. They store only with an [Adder], and
//     only if there is no value, which is the case after a deletion;
//   - whose store was not answered within the backend timeout, and reaches the cache later.
//
// A lock that the backend has lost counts as held until the next extension finds out, up to a third
// of LockTTL later. During that time later callers in that process join the load, whatever the cache.
// Callers that have joined get the value whenever the load ends.
//
// If Update cannot delete the value within [WithBackendTimeout], this process no longer takes the key's
// value from the cache: it calls the source until it has stored a new value. In the background it tries
// again to delete the old one, first after [WithOutagePause] and then less and less often, down to every 30
// seconds. Other processes may return the old value until either succeeds. A Loader remembers up to
// 65,536 such keys. When it has that many, Update of another key returns an error without calling change.
//
// So give the values a lifetime as well: it bounds how long an old value lasts in these cases.
//
// A change that is made without Update, followed by [Loader.Forget] and a deletion, reaches this
// process alone: a load in progress in another one stores what it read before the change.
//
// # Limits
//
// There is one load in the fleet as long as the lock holds: package [locker] describes what that
// depends on. A process that is stopped while loading, for longer than the lock lasts, may have
// been overtaken by another when it goes on. Its value is then not stored if another one is there.
//
// [Recipes]: https://github.com/golockers/locker/blob/main/docs/recipes.md#a-hot-key-behind-http
package singleflight
