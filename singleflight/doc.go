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
