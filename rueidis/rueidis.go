// Package rueidis keeps locks in Redis, through github.com/redis/rueidis.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	...
//	l := rueidislocker.New(client) // this package, imported by another name
//	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
//
// It is for programs that use rueidis, and for those with many goroutines, whose requests rueidis
// sends together. The locks are those of package redisv9: both use the same keys, channels and
// queues, and wake each other. All that the documentation of redisv9 says of keys, limited users,
// other programs and promises holds here as well, except that rueidis has no Ring.
//
// It works on a single server, with Sentinel and on a Cluster, with Redis 5 or later. Each
// operation needs one request, Fence two on a Cluster.
//
// # The client
//
// Any client of rueidis will do, except one with a ConnLifetime, with which every operation returns
// an error. When the lifetime of a connection ends while the server is slow, rueidis repeats the
// connection's requests, whether DisableRetry is set or not, and a repeated Release cannot report
// what the first one did. Otherwise rueidis repeats only commands that are marked as read-only, and
// a Locker's are not. For the same reason no replica answers them, unless your SendToReplicas sends
// it all commands. In that case most operations return errors.
//
// A call returns as soon as its context ends. Its request may still be sent, since rueidis may have
// queued it with those of other callers. The next Extend or Release with the same token waits for
// its reply. So each call whose context can end costs a goroutine. Without such a context, a call
// to a server that hangs returns an error when rueidis gives up the connection: by default 11
// seconds after the server's last reply (Dialer.KeepAlive and ConnWriteTimeout), and after a minute
// in any case.
package rueidis

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/permits"
	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/rueidis"
)

// Locker keeps locks in Redis. Make one with [New], and share it: it is safe for concurrent use,
// has one connection for all waiting and watching, and need not be closed. It keeps that
// connection, which is one of the client's BlockingPoolSize, for a second or two after it was last
// needed, even if the client is closed meanwhile.
//
// All its methods return ctx's error when ctx is done, and an error that wraps the client's when
// the server is down, hung, read-only or out of memory, or has another type of value at the
// lock's key; such a value is left alone. Any string there is a lock, unless it looks like one of
// package redigo's. A lock without an expiry is held until its key is deleted.
type Locker struct {
	client rueidis.Client
	alone  bool // all keys are on one server, where a script may use them

	deadlines deadlines
	hub       *pubsub.Hub
	locks     *redislock.Locks
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
}

// WithPrefix sets the prefix of the locks' keys. The default, used if prefix is empty, is
// "locker:". Lockers with different prefixes on one server are independent if neither prefix begins
// with the other, and neither begins with "!", as all keys but the locks' do. (For a prefix that
// does, these keys begin with "#" instead.)
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a Locker that keeps its locks on the servers of client. The caller closes the client
// when the Locker is no longer used. With a nil client, or one that has a ConnLifetime, every
// operation returns an error.
func New(client rueidis.Client, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	l := &Locker{client: client, deadlines: deadlines{timeout: callTimeout}}
	c := redislock.Config{Timeout: replyTimeout, Inline: inflight.Never}
	if c.Err = check(client); c.Err != errNoClient {
		l.alone = client.Mode() != rueidis.ClientModeCluster
	}
	l.hub = pubsub.New(l.dial, replyTimeout)
	l.hub.SetLinger(linger)
	c.Linger = linger
	c.Requests = redislock.Requests{Set: l.set, SetGet: l.setGet, Eval: l.eval, IsReply: isReply}
	c.Names, c.Counted = redislock.NewNamespace(o.prefix, l.alone), l.alone
	c.Owner, c.Hubs, c.ServerOf, c.MaxLooks = l, l.hubs, l.serverOf, maxLooks
	l.locks = redislock.New(c)
	return l
}

// Acquire takes the lock for token if it is free, for ttl rounded up to a millisecond, in one
// request. It is refused when another token holds the lock or is next in the queue for it on this
// Locker. When token holds the lock already, ttl replaces the remaining time. A process
// that may only keep the lock (WithLinger of package cohort) is asked for it, in one more request.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	return l.locks.Acquire(ctx, key, token, ttl)
}

// Listen is for package cohort: o is told when another token wants a lock that a token with the
// Listener's mark holds.
func (l *Locker) Listen(o demand.Owner) demand.Listener { return l.locks.Listen(o) }

// Permits is for package semaphore, not for applications. It returns the permits name/1 to name/n,
// which share a queue. It returns nil on a Cluster, if n is greater than 64, or if asked is not
// this Locker.
func (l *Locker) Permits(asked locker.Locker, name string, n int) permits.Permits {
	if asked != locker.Locker(l) {
		return nil
	}
	return l.locks.Permits(name, n)
}

// Extend replaces the remaining time of a lock that token holds with ttl, rounded up to a
// millisecond, in one request. It reports false if token does not hold the lock. Like Release it
// waits, as long as ctx lasts, for a call for the same token that a caller has left behind.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	return l.locks.Extend(ctx, key, token, ttl)
}

// Release frees a lock that token holds, or offers it to the next in the queue, in one request. It
// reports false if token does not hold the lock; if no token does, it still makes the queue look.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	return l.locks.Release(ctx, key, token)
}

// Fence returns a fencing number for a lock that token holds: one more than the last number under
// the Locker's prefix, and at least the server's time in microseconds since 1970. So numbers keep
// growing after a restart without data or with old data, an eviction, or a failover to a replica
// that lags, unless the server's clock is behind the one that minted the last number. Fence takes
// one request, two on a Cluster.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	return l.locks.Fence(ctx, key, token)
}

// isReply reports whether err is an error reply of a server that begins with prefix.
func isReply(err error, prefix string) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && !reply.IsNil() && strings.HasPrefix(reply.Error(), prefix)
}
