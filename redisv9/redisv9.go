// Package redisv9 keeps locks in Redis, through github.com/redis/go-redis/v9.
//
//	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: "localhost:6379"}))
//	lease, err := locker.Lock(ctx, redisv9.New(client), "invoice/42", 30*time.Second)
//
// It works on a single server, on Sentinel, Ring and Cluster, with Redis 5 or later, and needs one
// request for each operation, or fewer with [WithBatching].
//
// # Names
//
// The lock of name k is the key "locker:k". Its value is the holder's token, and its expiry is the
// lock's. The names of all other keys begin with "!", a word, and the prefix:
//
//   - "!line:locker:{locker:k}" is the queue for the lock, with a place for each process that
//     waits. When these are gone, it outlives the lock by a minute.
//   - "!line:locker:@permits{locker:s}" is the queue for all permits of a semaphore of name s.
//   - "!fence:locker:" is the counter of fencing numbers, which has no expiry.
//   - "!window:locker:" begins the keys of counts for package window.
//
// A lock's channel has the name of its key. Each Locker that waits, or that keeps locks for package
// cohort or asks for such locks, has a channel whose name is "!wait:locker:" and a random string.
//
// # Limited users
//
// A user of the server needs only the keys and channels of its prefix. It then cannot read, free or
// forge the locks of other prefixes:
//
//	ACL SETUSER app on >secret +@all ~locker:* ~!line:locker:* ~!fence:locker:*
//		~!window:locker:*
//		resetchannels &locker:* &!wait:locker:*
//
// In the names that begin with "!", bytes of the prefix other than letters, digits and :._-/ are
// replaced by % and two hexadecimal digits. A user who may not subscribe waits by polling.
//
// # Other programs
//
// Package redigo has the same default prefix but another format. Each refuses the other's locks
// with an error, so give them different prefixes. Plain times, which hand-written scripts leave,
// are refused as well. A token that looks like one of these is kept as "token:" and the token.
//
// # Contexts
//
// [Operations] has the options for production. Set [redis.Options.ContextTimeoutEnabled].
// Without it go-redis keeps a caller whose deadline has passed waiting for its own timeouts: 3
// seconds by default, 5 from version 9.22 on, and 10 on a connection on which the server has
// announced maintenance. A Locker therefore has to run each call with a nearer deadline on a
// goroutine that it can leave behind. For a client without timeouts (ReadTimeout or WriteTimeout -1
// or -2), the Locker's calls have a timeout of 3 seconds.
//
// go-redis knows a deadline while it waits for a reply, but not a cancellation: a call to a server
// that hangs and whose context is canceled returns when the client's timeout or the context's
// deadline ends the request.
//
// # What is promised
//
// Mutual exclusion holds as long as one Redis server, or a replica that has all its data, answers
// for the key. Replication is asynchronous, so a failover may lose the last writes, locks among
// them. Expiry is by the server's clock. If that is not enough, use [locker.Lease.Fence].
//
// On a Ring, exclusion also requires that all clients agree on which shards are up. Each client
// decides that by itself: it sends heartbeats, and moves the keys of a shard that has not answered
// for a few seconds to the others. Then a lock of that shard may have two holders although no data
// is lost. Use a Cluster or a single server, or a [redis.RingOptions.HeartbeatFrequency] longer
// than the process lives: keys then never move, and while a shard is down its locks are errors.
//
// [Operations]: https://github.com/golockers/locker/blob/main/docs/operations.md#a-client-for-the-locks
package redisv9

import (
	"context"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/permits"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// Locker keeps locks in Redis. Make one with [New], and share it: it is safe for concurrent use,
// has one connection for all waiting and watching, and need not be closed. It keeps that
// connection, and two goroutines, for less than a minute after they were last needed.
//
// All its methods return ctx's error when ctx is done, and an error that wraps the client's when
// the server is down, hung, read-only or out of memory, or has another type of value at the
// lock's key; such a value is left alone. Any string there is a lock, unless it looks like one of
// package redigo's. A lock without an expiry is held until its key is deleted.
type Locker struct {
	client        redis.UniversalClient
	limits        limits
	server        subscriber // makes the subscriptions, except on a Ring
	batches       *batches   // nil: each call is a request of its own
	runsOnConnect bool       // the client has an OnConnect
	polls         bool       // there are no subscriptions

	subs  subscriptions
	locks *redislock.Locks
}

var (
	_ locker.Fencer  = (*Locker)(nil)
	_ locker.Watcher = (*Locker)(nil)
	_ locker.Waiter  = (*Locker)(nil)

	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	prefix string
	slots  int
}

// WithPrefix sets the prefix of the locks' keys. The default, used if prefix is empty, is
// "locker:". Lockers with different prefixes on one server are independent if neither prefix begins
// with the other, and neither begins with "!", as all keys but the locks' do. (For a prefix that
// does, these keys begin with "#" instead.)
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// WithBatching makes concurrent calls share requests, on a client for a single server or for
// Sentinel. As long as fewer than slots requests of the Locker are under way, a call is sent alone
// and immediately, so a program with little concurrency sees no difference. Further calls queue,
// and when one of the requests ends, up to 128 of them are sent together in a pipeline. 8 is a good
// number of slots.
//
// The answers are the same. A call in the queue or in a pipeline returns as soon as its context
// ends, even by cancellation. If the call was still in the queue, it is never sent. But hooks see
// pipelines without the values of the callers' contexts. A hook that panics in a pipeline ends the process. If a pipeline gets no answer and
// go-redis was about to repeat it, its commands are repeated one by one.
//
// By default, or if slots is 0 or less, each call is a request of its own. The same holds, whatever
// slots is, on a Ring, on a Cluster, where a batch would wait for its slowest node, and on clients
// that wrap go-redis's own.
func WithBatching(slots int) Option {
	return func(o *options) { o.slots = slots }
}

// New returns a Locker that keeps its locks on the servers of client. The caller closes the
// client when the Locker is no longer used. With a nil client every operation returns an error.
//
// With an AutoPipeliner of go-redis every operation returns an error as well: its commands ignore
// contexts and are repeated in batches. Pass the client that it was made from. If client is not
// one of go-redis's own types but wraps one, New makes safe assumptions: a Cluster, go-redis's
// default timeouts, and ContextTimeoutEnabled off.
func New(client redis.UniversalClient, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	l := &Locker{client: client}
	var c redislock.Config
	single := false // all keys are on one server, where a script may use them
	switch client := client.(type) {
	case nil:
		c.Err = errNoClient
	case *redis.Client:
		if client == nil {
			c.Err = errNoClient
			break
		}
		l.client, l.limits = limitsOfClient(client)
		o := client.Options()
		c.MaxLooks = redislock.LooksOf(o.PoolSize, o.MaxActiveConns)
		l.runsOnConnect = o.OnConnect != nil
		l.polls = sharesPool(o.PoolSize, o.MaxActiveConns)
		single, c.Counted = true, true
	case *redis.Ring:
		if client == nil {
			c.Err = errNoClient
			break
		}
		o := client.Options()
		l.limits = limitsOfRing(o)
		size := complete(&redis.Options{PoolSize: o.PoolSize}).PoolSize
		c.MaxLooks, l.polls = redislock.LooksOf(size, o.MaxActiveConns), sharesPool(size, o.MaxActiveConns)
		l.runsOnConnect = o.OnConnect != nil
		c.Counted, c.Changes = true, true
	case *redis.ClusterClient:
		if client == nil {
			c.Err = errNoClient
			break
		}
		o := client.Options()
		l.limits = limitsOfCluster(o)
		l.runsOnConnect = o.OnConnect != nil
		c.MaxLooks, l.polls = redislock.LooksOf(o.PoolSize, o.MaxActiveConns), sharesPool(o.PoolSize, o.MaxActiveConns)
	default:
		if isAutoPipeliner(client) {
			c.Err = errAutoPipeliner
		}
		l.limits = limitsOfUnknown()
		l.runsOnConnect = true // it may
	}
	c.Names = redislock.NewNamespace(o.prefix, single)
	l.server = &anySubscriber{l.client}
	l.subs.timeout = l.limits.io
	c.Timeout, c.Inline, c.Unbounded = l.limits.io, l.limits.inline, l.limits.unbounded
	c.Requests = redislock.Requests{Set: l.set, SetGet: l.setGet, Eval: l.eval, IsReply: redis.HasErrorPrefix}
	c.Owner, c.Hubs, c.ServerOf = l, l.hubs, l.serverOf
	l.locks = redislock.New(c)
	if _, ok := l.client.(*redis.Client); ok && c.Err == nil && o.slots > 0 {
		l.batches = &batches{locker: l, slots: o.slots}
	}
	return l
}

var errNoClient = misuse.New("redisv9: nil client")

// Acquire takes the lock for token if it is free, for ttl rounded up to a millisecond, in one
// request. It is refused when another token holds the lock or is next in the queue for it on this
// Locker. When token holds the lock already, ttl replaces the remaining time. If go-redis repeated
// the request, such an Acquire returns an error, as Extend does. So does any Acquire that takes the
// lock by a repeated request if the Locker has met a queue lately, or on a server older than Redis
// 7.
//
// When the holder is a process that may only keep the lock ([cohort.WithLinger]), Acquire asks it
// for the lock, in one more request, and waits for its answer. The answer takes a round trip or
// two; after two seconds, or up to ten if requests are slow, Acquire is refused without it. The
// first time it subscribes to a channel for answers, which is kept for ten seconds.
//
// [cohort.WithLinger]: https://pkg.go.dev/github.com/golockers/locker/cohort#WithLinger
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	return l.locks.Acquire(ctx, key, token, ttl)
}

// Listen is for package cohort: o is told when another token wants a lock that a token with the
// Listener's mark holds. It returns nil on a Ring.
func (l *Locker) Listen(o demand.Owner) demand.Listener { return l.locks.Listen(o) }

// Permits is for package semaphore, not for applications. It returns the permits name/1 to name/n,
// which share a queue. It returns nil on a Ring or a Cluster, if n is greater than 64, or if asked
// is not this Locker.
func (l *Locker) Permits(asked locker.Locker, name string, n int) permits.Permits {
	if asked != locker.Locker(l) {
		return nil
	}
	return l.locks.Permits(name, n)
}

// Extend replaces the remaining time of a lock that token holds with ttl, rounded up to a
// millisecond, in one request. It reports false if token does not hold the lock. Like Release it
// waits, as long as ctx lasts, for a call for the same token that a caller has left behind. If
// go-redis sent the request again because there was no answer, Extend returns an error even if the
// last reply was positive: an earlier request may still arrive and set the remaining time to ttl,
// even if the lock has been extended further since.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	return l.locks.Extend(ctx, key, token, ttl)
}

// Release frees a lock that token holds, or offers it to the next in the queue, in one request. It
// reports false if token does not hold the lock; if no token does, it still makes the queue look. If
// go-redis repeated the request because a reply was lost, and the last copy found that token does
// not hold the lock, Release reports true: an earlier copy may have released it, and in any case
// token does not hold it.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	return l.locks.Release(ctx, key, token)
}

// Fence returns a fencing number for a lock that token holds: one more than the last number under
// the Locker's prefix, and at least the server's time in microseconds since 1970. So numbers keep
// growing after a restart without data or with old data, an eviction, or a failover to a replica
// that lags, unless the server's clock is behind the one that minted the last number. Fence takes
// one request, two on a Ring or a Cluster.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	return l.locks.Fence(ctx, key, token)
}
