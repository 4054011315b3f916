package cohort

import "time"

const (
	defaultMaxHandoffs = 100_000
	defaultMaxTenure   = 50 * time.Millisecond
)

// Option adjusts a [Locker].
type Option func(*options)

type options struct {
	maxHandoffs int
	maxTenure   time.Duration
	linger      time.Duration
	owner       string
}

// WithMaxHandoffs limits how many times in a row the lock is handed on inside this process before
// other processes get their turn. The default is 100,000, so that in practice [WithMaxTenure] is
// the limit. With n <= 0 the lock is never handed on.
func WithMaxHandoffs(n int) Option { return func(o *options) { o.maxHandoffs = max(n, 0) } }

// WithMaxTenure limits how long this process hands the lock on internally before other processes
// get their turn. The last holder keeps it for as long as its ttl allows. The default is 50 ms. A
// longer tenure saves requests and costs other processes latency; a process that dies may block
// them for this much longer than its ttl. With d <= 0 the lock is never handed on.
//
// On a backend without a queue this process pauses after each tenure, so that other processes can
// win the lock. While none does, up to seven pauses in a row are skipped, so a process that comes
// then may wait for eight tenures.
func WithMaxTenure(d time.Duration) Option { return func(o *options) { o.maxTenure = max(d, 0) } }

// WithLinger keeps a lock for d after its last release, so call [Locker.Close] before the process
// ends: otherwise others wait for its locks as if it had crashed, for up to their ttl + d. The next
// caller of this process gets the lock without a request, except that a lock that is used again and
// again is extended about once in d. The default, used if d <= 0, is not to keep locks. Use 50 to
// 100 ms for locks that a process takes again and again.
//
// If another process wants a lock that lingers, it gets the lock at once. Lock waits for one
// release. TryLock waits for the answer of the process that keeps the lock, which takes less than a
// millisecond. TryLock is refused only if the lock is in use, or if that process does not answer.
// If the process is stopped, or has died on a Cluster, TryLock waits two seconds for it, or longer
// if requests are slow, and no more than once in five seconds.
//
// A lock that another process wants does not linger, and its tenure ends as [WithMaxTenure]
// describes. If no process is known to want it, a tenure lasts for up to 20 times the longer of d
// and MaxTenure, or for MaxHandoffs. Clients that do not report that they want a lock, such as
// handwritten ones, may have to wait that long.
//
// This needs a backend that reports demand for its locks: memory, or redisv9 or rueidis on a single
// server, Sentinel or Cluster. WithLinger has no effect over other backends, over a Locker that
// wraps one of these (except for [locker.Observed]), or while subscribing to the server is not
// possible. A Locker subscribes when it takes a lock, and unsubscribes after ten seconds without a
// lock. A lock that it takes before the server has confirmed the subscription does not linger.
//
// A lock that lingers is not extended, so it lingers no longer than its ttl. When it is taken
// again, it is held for up to d longer than the caller's ttl. Releasing a lock that lingers makes
// no request. So the release does not detect that the lock was broken or lost, and wakes no watcher
// for up to d. For up to d, the next callers of this process may get a lock that was lost.
func WithLinger(d time.Duration) Option { return func(o *options) { o.linger = max(d, 0) } }

// WithOwner makes the private tokens begin with label and a slash, so that they show which process
// holds a lock, for instance in [locker.Info] and in the backend's own tools. A label is up to 900
// bytes of UTF-8 without control characters; with any other label every operation returns
// [locker.ErrInvalidToken]. Without a label, a private token begins with the token of the caller
// that took the lock, and so with the label of [locker.WithOwner].
func WithOwner(label string) Option { return func(o *options) { o.owner = label } }
