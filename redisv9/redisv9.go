// Package redisv9 keeps locks in Redis, through github.com/redis/go-redis/v9.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	lease, err := locker.Lock(ctx, redisv9.New(client), "invoice/42", 30*time.Second)
//
// It works on a single server, on Sentinel, Ring and Cluster, with Redis 5 or later, and needs one request
// an operation. The lock of name k is the key "locker:k", its value is the holder's token, its expiry the
// lock's. Everything else that the package keeps begins with "!" instead: the line of those who wait for a
// lock, which lives a minute at most without its waiters, and one counter of fencing numbers a prefix,
// "!fence:locker:", which has no expiry. Channels are named by the lock's own key, and by "!wait:" and a
// random string for each Locker that waits. A user of the server whose rights are limited needs the keys and
// channels that begin with "locker:" and "!"; who may not subscribe waits by asking again and again.
//
// # Contexts
//
// Set [redis.Options.ContextTimeoutEnabled]. Without it go-redis leaves a caller whose deadline has passed
// waiting for its own timeouts, 3 seconds by default, and a Locker has to give each call whose deadline is
// nearer than those a goroutine that it can leave behind. A client without timeouts (ReadTimeout or
// WriteTimeout -1 or -2) is given one of 3 seconds for the Locker's calls.
//
// # What is promised
//
// Mutual exclusion holds as long as one Redis server, or its replica that has all its data, answers for the
// key: replication is asynchronous, so a failover may lose the last writes, locks among them. Expiry is by
// the server's clock. See [locker.Lease.Fence] for where that is not enough.
package redisv9

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/redis/go-redis/v9"
)

const defaultPrefix = "locker:"

// Locker keeps locks in Redis. Make one with [New], and share it: it is safe for concurrent use, keeps one
// connection for all that its users wait for, and has nothing to close. It holds that connection, and two
// goroutines, half a minute longer than somebody waits.
//
// All its methods return ctx's error when ctx is done, and an error that wraps the client's when the server
// is down, hung, read-only or out of memory, or has another type of value at the lock's key; such a value is
// left alone. A string there is a lock, whoever set it: without an expiry it is held until somebody deletes it.
type Locker struct {
	client redis.UniversalClient
	err    error // what every operation returns: there is no client
	prefix string
	mark   string // what the names of everything but the locks themselves begin with
	limits limits
	server subscriber // what is subscribed with, but on a Ring
	// alone: all keys of a lock and the fence counter are on one server, where a script may use them.
	alone bool
	// scripts believe what PUBLISH says of how many processes it reached, unless it is a Cluster, where a node
	// counts its own only.
	scripts *handing
	old     atomic.Bool // the server does not know SET with NX and GET: it is older than Redis 7

	calls    inflight.Calls
	subs     subscriptions
	channel  atomic.Pointer[string] // on which it hears of locks that were handed to it
	waiters  atomic.Uint64          // how many have waited: the last one's id
	givingUp atomic.Int64           // how many are giving up their place in line
}

var (
	_ locker.Fencer  = (*Locker)(nil)
	_ locker.Watcher = (*Locker)(nil)
	_ locker.Waiter  = (*Locker)(nil)
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	prefix string
}

// WithPrefix sets what the keys of locks begin with, "locker:" by default. Lockers with different prefixes
// on one server are independent if neither prefix begins with the other, and neither with "!", which is what
// everything but locks begins with. (A prefix that does makes that "#" for its own Locker.) An empty prefix
// is the default.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a Locker that keeps its locks where client says. With a nil client every operation is an
// error. The client stays the caller's, who closes it when the Locker is no longer used.
//
// Of clients that are not from go-redis itself, but wrap one of its clients, New assumes what is safe: a
// Cluster, timeouts of 3 seconds, and ContextTimeoutEnabled off.
func New(client redis.UniversalClient, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.prefix == "" {
		o.prefix = defaultPrefix
	}
	l := &Locker{client: client, prefix: o.prefix, mark: "!", scripts: handingUncounted}
	if strings.HasPrefix(o.prefix, l.mark) {
		l.mark = "#"
	}
	switch c := client.(type) {
	case nil:
		l.err = errNoClient
	case *redis.Client:
		if c == nil {
			l.err = errNoClient
			break
		}
		l.client, l.limits = limitsOfClient(c)
		l.alone, l.scripts = true, handingCounted
	case *redis.Ring:
		if c == nil {
			l.err = errNoClient
			break
		}
		l.limits = limitsOfRing(c.Options())
		l.scripts = handingCounted
	case *redis.ClusterClient:
		if c == nil {
			l.err = errNoClient
			break
		}
		l.limits = limitsOfCluster(c.Options())
	default:
		l.limits = limits{io: defaultTimeout, inline: defaultTimeout}
	}
	channel := newChannel(l.mark)
	l.channel.Store(&channel)
	l.server = &anySubscriber{l.client}
	l.subs.timeout, l.subs.linger = l.limits.io, linger
	return l
}

var (
	errNoClient = errors.New("the client is nil")
	errChanging = errors.New("the lock changed hands under each of three tries")
)

// Acquire takes the lock for token when it is free, for ttl, rounded up to a millisecond, in one request.
// It is refused when another token holds the lock or is next in line for it on this Locker. When token
// holds the lock already, ttl replaces the remaining time.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	s := &sending{ctx: ctx, token: token}
	return call(l, s, "acquire", key, func() (bool, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return false, err
		}
		return l.acquire(s, l.names(key), ms)
	})
}

func (l *Locker) acquire(s *sending, n names, ms int64) (bool, error) {
	for range 3 {
		// A Locker that has met a line lately minds it; SET does not.
		if l.old.Load() || l.subs.inLine.Load() {
			reply, err := l.run(l.scripts.wait, n.lock, n.line, s, ms)
			if err != nil || reply == int64(1) {
				return err == nil, err
			}
			return false, s.refused(l.limits.io)
		}
		holder, err := l.client.Do(s.ctx, "set", n.lock, s, "px", ms, "nx", "get").Text()
		switch {
		case errors.Is(err, redis.Nil): // nobody held it: set
			return true, nil
		case err == nil && holder != s.token:
			return false, s.refused(l.limits.io)
		case err == nil: // it is ours
			reply, err := l.run(extendScript, n.lock, n.line, s, ms)
			if err != nil || reply == int64(1) {
				return err == nil, err
			}
			// It expired just now: try again.
		case redis.HasErrorPrefix(err, "syntax error"):
			l.old.Store(true)
		default:
			return false, err
		}
	}
	return false, errChanging
}

// Extend replaces the remaining time of a lock that token holds by ttl, rounded up to a millisecond, in one
// request. It is false when token does not hold the lock. Like Release it waits, as long as ctx lasts, for
// a call for the same token that a caller has left behind.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	s := &sending{ctx: ctx, token: token}
	return callInOrder(l, s, "extend", key, func() (bool, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return false, err
		}
		n := l.names(key)
		reply, err := l.run(extendScript, n.lock, n.line, s, ms)
		return reply == int64(1), err
	})
}

// Release frees a lock that token holds, or hands it to the next in line, in one request. It is false when
// token does not hold the lock. When go-redis sent the request more than once, because a reply was lost, and
// the last one found that token does not hold the lock, that is true: an earlier one may have released it,
// and in any case it is not held.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	s := &sending{ctx: ctx, token: token}
	return callInOrder(l, s, "release", key, func() (bool, error) {
		n := l.names(key)
		reply, err := l.run(l.scripts.release, n.lock, n.line, s)
		return err == nil && (reply == int64(1) || s.sends > 1), err
	})
}

// Fence returns a fencing number for a lock that token holds: greater than every number before it under the
// Locker's prefix, for as long as the server keeps the counter, which lasts as long as its data: a server
// that comes back empty, or a failover to a replica that lags, starts again lower. It takes one request, two
// on a Ring or a Cluster.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	s := &sending{ctx: ctx, token: token}
	fence, err = callInOrder(l, s, "fence", key, func() (uint64, error) {
		counter, lock := l.mark+"fence:"+l.prefix, l.prefix+key
		if l.alone {
			reply, err := l.run(fenceScript, counter, lock, s)
			n, _ := reply.(int64)
			return uint64(n), err
		}
		// First the number, then the check: whoever holds the lock later has a greater number.
		n, err := l.client.Incr(s.ctx, counter).Result()
		if err != nil {
			return 0, err
		}
		reply, err := l.run(holdsScript, lock, "", s)
		if reply != int64(1) || err != nil {
			return 0, err
		}
		return uint64(n), nil
	})
	return fence, fence > 0 && err == nil, err
}
