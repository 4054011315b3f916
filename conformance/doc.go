// Package conformance checks that a [locker.Locker] keeps its contract, and shows where it does not.
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
// Each check is a subtest with a name such as release/only-the-owner, and go test's -run chooses among them:
//
//	go test -run 'TestConformance/release' .
//	go test -run 'TestConformance/(expiry|extend)/.*early' .
//
// The checks run at the same time and mostly wait, so all of them take about as long as the longest: some
// ten seconds. Their keys and tokens are random, their locks short, or released in the end; so the backend
// may be one that others use, too, and Run may be called any number of times, at the same time as well.
//
// # What is checked
//
// Three Lockers of Config.New, called A, B and C, stand for three processes. The checks know nothing about
// the backend beyond what [locker.Locker] promises, in these groups:
//
//   - names: keys and tokens of any length and content are what they are, and no two are the same;
//   - exclusion: one holder at a time, also when many come together, on a free key or one that has just expired;
//   - expiry: never early, hardly late, any ttl;
//   - extend, release, sametoken: only the token that holds the lock, and exactly what was asked for;
//   - context: a context that has ended, or ends meanwhile;
//   - watch, wait, fence: the rules of [locker.Watcher], [locker.Waiter] and [locker.Fencer], for a Locker that
//     is one;
//   - fault: replies that are lost, requests that arrive late, servers that hang or go away. A TCP proxy
//     between Config.Addr and one more Locker, D, makes these faults on purpose and exactly when they hurt.
//
// What a Locker need not be able to do is skipped by name, with the reason: optional interfaces that it does
// not have or that say [errors.ErrUnsupported], the faults when Config.Addr is empty, and what Config.Skip
// names. The last line of Run's output, which go test -v shows, counts them.
//
// Without Config.Addr nothing is known about errors: nothing goes wrong in such a run. A Locker that says false
// where it should say that it does not know passes then, and so does one whose calls outlive their context on a
// backend that hangs.
//
// Some mistakes no run can see, since it knows no protocol and has but one machine: an expiry that is reckoned
// by the client's clock (the three Lockers share it; the rule is that the backend's counts); replies that are
// errors of the backend, such as that it is read-only or out of memory, taken for false; a very long ttl cut
// short; what stays behind on the backend, such as rows that have expired. These are for the adapter's own
// tests.
//
// The adapter is judged together with the client that New makes. A setting there that mends a check, such as
// no repetition of requests, has to be asked of users, or to be made unnecessary.
//
// # Reading a failure
//
// A failed check says which rule was broken, what it did, and what usually causes this:
//
//	release/after-takeover
//	  rule      C7 Release only when the token holds the lock, as one atomic step; the lock is free at once.
//	  done      +0.000s  A.Acquire(k1, t1, 50ms) = true, nil after 0.2ms
//	            +0.000s  B.Acquire(k1, t2, 10m0s) = false, nil, 9 times until +0.049s
//	            +0.051s  B.Acquire(k1, t2, 10m0s) = true, nil after 0.1ms
//	            +0.051s  A.Release(k1, t1) = true, nil after 0.1ms
//	  expected  A.Release = false, nil: its time is up and B has taken the lock over
//	  happened  A.Release = true, nil
//	  often     a stale holder's release that deletes its successor's lock.
//
// Keys and tokens have short names, k1 and t1; times count from the check's first step. One mistake often fails
// several checks; then the last line of Run's output says with which to begin.
//
// # What a failure means
//
// The suite is exact about early and patient about late. That a lock was given to another too early is
// said only when the other's call had returned before the ttl since the holder's call started had passed,
// which no slow machine can bring about. That a thing did not come about in time is said after the
// granularity that Config states and an allowance of some seconds, which grows with how slow the backend was
// seen to be. So a failure is the Locker's doing, or Config's. In races, a pass may be luck, though; run it
// more than once (-count) when two steps of your backend have to be one.
package conformance
