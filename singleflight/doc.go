// Package singleflight spares callers that want the same thing at the same time the duplicate work:
// one does it, and the others wait a moment for the result.
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
// The cache is anything with a Get and a Set, see [Cache]. A backend that is down costs coordination, not
// availability: values are then loaded without it, unless [WithFailClosed] is used.
//
// # Which to use
//
// Use a Group if the result is cheap enough to compute once in each process. Use a Loader if it
// should be computed once in the fleet and all may share it. Use a lock if each caller has to do
// the work itself, one at a time: [locker.Do], with package cohort around the backend's Locker if
// many goroutines want the lock.
//
// # Limits
//
// There is one load in the fleet as long as the lock holds: package [locker] describes what that
// depends on. A process that is stopped while loading, for longer than the lock lasts, may have
// been overtaken by another when it goes on; it then stores its value only if there is none.
//
// A Loader does not know when the source changes. A load that began before the change may store the value
// from before it; see [Loader.Forget].
package singleflight
