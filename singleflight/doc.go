// Package singleflight keeps callers that want the same thing at the same time from all doing the work: one
// does it, and the others wait a moment for what it has found.
//
// [Group] does that within a process, for any function.
//
// [Loader] does it for a whole fleet, for the thing that most often needs it: a key that many want is not
// in the cache any more. Without help each process, or each request, then asks the database for it. With
// a Loader one does:
//
//	query := func(ctx context.Context, key string) (User, error) { … }
//	users := singleflight.NewLoader(redisv9.New(client), cache, query)
//	user, err := users.Load(ctx, "user/42")
//
// The cache is anything with a Get and a Set, see [Cache]. A backend that is down costs coordination and
// not availability: values are then loaded without it, unless [WithFailClosed] says otherwise.
//
// [Locker] is for locks that have many contenders in each process: it lines them up there, so that they do
// not all press on the backend, and hands a lock that is held from one to the next.
//
// # Which of them
//
// They build on one another but do not need each other. A result that is cheap enough to compute once in
// each process needs a Group. One that must be computed once in the fleet, and that all may share, needs
// a Loader. Work that each caller has to do by itself, but one at a time, needs a lock: [locker.Do],
// with a [Locker] around the backend's if many goroutines want it.
//
// # What nobody can promise
//
// That there is one load in the fleet holds as long as the lock does: [locker.Locker] says what that
// depends on. A process that is stopped while loading for longer than the lock lasts may, when it goes
// on, have been overtaken by another; it then stores its value only if there is none.
//
// Nor does a Loader know when the source changes. A load that began before the change may store the
// value from before it; see [Loader.Forget].
package singleflight
