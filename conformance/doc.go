// Package conformance checks that a [locker.Locker] keeps its contract, and shows where it does
// not. [RunCache] does the same for a cache that a Loader of package singleflight fills, and
// [RunSemaphore] and [RunCounter] for semaphores and for counters of package window. [Write your own
// adapter] takes you from nothing to a Locker that passes.
//
// An adapter's test is this:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Config{
//			New: func(tb testing.TB, addr string) locker.Locker {
//				client := redis.NewClient(&redis.Options{Addr: addr}) // as your users make it
//				tb.Cleanup(func() { client.Close() })
//				return New(client)
//			},
//			Addr: "127.0.0.1:6379",
//		})
//	}
//
// Each check is a subtest with a name such as release/owner-only, and go test's -run chooses among
// them:
//
//	go test -run 'TestConformance/release' .
//	go test -run 'TestConformance/(expiry|extend)/.*early' .
//
// The checks run at the same time and mostly wait, so all of them together take about as long as
// the longest: about ten seconds, or twenty with faults. All runs in a process share the machine by a
// budget of so many checks and requests for each core, so several of them take longer, and do not
// exhaust a client's connections. A few checks need the backend for themselves, as those of List do,
// and run after the others. Keys and tokens are random, and locks are brief or released in the end.
// So the backend may be shared, and Run may be called any number of times, even concurrently.
//
// # What is checked
//
// Three Lockers of Config.New, called A, B and C, stand for three processes. The checks know
// nothing about the backend beyond what [locker.Locker] promises, in these groups:
//
//   - names: keys and tokens of any length and content work, and no two are confused;
//   - exclusion: one holder at a time, even when many compete for a free key or one that has just
//     expired;
//   - expiry: never early, at most slightly late, any ttl;
//   - extend, release, sametoken: only the token that holds the lock, and exactly what was asked for;
//   - context: contexts that have ended, or that end during the call;
//   - watch, wait, fence, inspect, list: the rules of [locker.Watcher], [locker.Waiter],
//     [locker.Fencer], [locker.Inspector] and [locker.Lister], for a Locker that implements them;
//   - demand: a Locker that keeps a lock after its release, for the next caller of its process, looks
//     like any other from outside, so all Lockers have to pass them. If the Locker has a method
//     Close() error, that must give up such locks; it may also close connections;
//   - fault: replies that are lost, requests that arrive late, servers that hang or go away. A TCP
//     proxy between Config.Addr and one more Locker, D, injects these faults exactly when they do harm.
//
// The proxy knows no protocol except HTTP/2 without TLS. Everything that a client sends before the
// server answers is one request. With HTTP/2 it is everything that the client sends on one stream
// before the server answers on that stream, such as a unary call of gRPC or a message on a stream
// that stays open. Pings, window updates, resets and the like are not requests. So let the test of
// a Locker that uses HTTP/2 connect without TLS.
//
// Checks that do not apply are skipped by name, with the reason: those of optional interfaces that
// the Locker does not have or that return [errors.ErrUnsupported], the faults if Config.Addr is
// empty, and those that Config.Skip names. The last line of Run's output, which go test -v shows,
// counts them.
//
// # Facts and times
//
// What a check fails of is a fact or a time. A fact must not happen on any machine: two holders, a
// lost release, a wrong error, a leak, a hang beyond any patience. A time is something that came later
// than it should, such as an error after a client's timeout. All the while the suite measures how late
// timers fire and how long the backend's plainest request takes. If something came too late while the
// machine was slower than the check tolerates, that shows nothing about the Locker, and the check is
// run again: without others of its run, in the end without any other in the process, and with its
// times stretched by what was measured. The same is done for a check that could not decide, for
// instance because a lock had expired before it could be observed.
//
// A check that could not be judged in four tries is inconclusive: go test marks it as skipped, and the
// last line of Run's output names it with its reason. It has shown nothing. If that is not good enough,
// set LOCKER_CONFORMANCE=strict in the environment to make it fail.
//
// # What a run cannot detect
//
// Without Config.Addr errors are not tested, since nothing goes wrong in such a run. A Locker that
// returns false for an unknown outcome then passes, and so does one whose calls outlive
// their context on a backend that hangs.
//
// A run cannot detect some mistakes, since it knows no protocol and has only one machine: an
// expiry by the client's clock (the three Lockers share it; the backend's clock should count);
// errors of the backend, such as that it is read-only or out of memory, taken for false; a very
// long ttl cut short; what stays behind on the backend, such as expired rows. Check for these in
// the adapter's own tests.
//
// The adapter is tested together with the client that New makes. If a check passes only with some
// setting of the client, such as no retries, require it of users, or make it unnecessary.
//
// # Reading a failure
//
// A failed check prints the rules of the contract that it enforces, by their numbers in the
// documentation of package locker or, for its optional interfaces, in rules.go; then what the check
// did, what it wanted and got, and what commonly causes this:
//
//	release/after-takeover
//	  rule          C7 Release works only when the token holds the lock, as one atomic step; the lock is free at once.
//	  history       +0.000s  A.Acquire(k1, t1, 50ms) = true, nil after 0.2ms
//	                +0.000s  B.Acquire(k1, t2, 10m0s) = false, nil, 9 times until +0.049s
//	                +0.051s  B.Acquire(k1, t2, 10m0s) = true, nil after 0.1ms
//	                +0.051s  A.Release(k1, t1) = true, nil after 0.1ms
//	  want          A.Release = false, nil: its lock has expired, and B has taken it over
//	  got           A.Release = true, nil
//	  common cause  a stale holder's release that deletes its successor's lock.
//
// Keys and tokens have short names, k1 and t1; times count from the check's first step. One mistake
// often fails several checks; then the last line of Run's output names the one to begin with: a
// wrong answer proves more than a late one or an error.
//
// The suite proves that its checks find mistakes by Lockers that have them: mistakes.md beside this
// package lists some 350, each with the checks that must find it. They are those of articles
// and of real adapters, so it is also a list of what to look for when a check fails.
//
// # What a failure means
//
// The suite is exact about early and patient about late. A lock counts as given to another too
// early only if the other's call returned within the ttl since the holder's call started, which a
// slow machine cannot cause. An event counts as late only after an allowance of some seconds, plus
// Config's Granularity if a lock has to expire, and only if the machine does not explain it. So a
// failure is caused by the Locker or by Config. In races, however, a pass may be luck: if two steps of
// your backend have to be atomic, run the suite more than once (-count).
//
// [Write your own adapter]: https://github.com/golockers/locker/blob/main/docs/adapters.md
package conformance
