// Package redigo keeps locks on a Redis server through a [redis.Pool] of
// github.com/gomodule/redigo. It uses neither scripts nor options of SET, so it also runs on old
// servers, and on proxies and look-alikes that know MULTI and WATCH.
//
//	pool := &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) {
//		return redis.DialContext(ctx, "tcp", "localhost:6379", redis.DialConnectTimeout(5*time.Second))
//	}}
//	lease, err := locker.Lock(ctx, redigo.New(pool), "invoice/42", 30*time.Second)
//
// # What is on the server
//
// The key of a lock is the prefix followed by the lock's name, and its value is
// `<expiry>:<token>`, the expiry in milliseconds since 1970. It is the classic lock of SETNX, GET
// and GETSET: a key whose expiry has passed is free and may be taken over. The GETSET is carried
// out only if the value is still the expired one, so a process that loses the race changes
// nothing. A key also has an expiry on the server, a day after the lock's, which removes keys
// that are no longer used and never decides who holds a lock. The longest ttl is 7 days, and a
// longer one is [locker.ErrInvalidTTL].
//
// A plain number, which hand-written scripts of this kind leave, is a lock without an owner that
// expires at that Unix time, in seconds or milliseconds by its magnitude. It is honored, and taken
// over once expired. Any other value, including a number too small to be such a time, and any other
// type is an error and is left alone.
//
// Other names begin with "!", or with "#" if the prefix begins with "!": the counter of fencing
// numbers, one for the prefix; keys that last for one transaction; and a channel. An ACL has to
// allow these, and should allow PUBLISH and SUBSCRIBE on channels named like the locks' keys:
// otherwise locks work, but waiters poll. Redis Cluster is not supported (CROSSSLOT). An eviction
// policy for keys that have an expiry (volatile-lru and so on) may evict locks.
//
// # Time
//
// Expiries are on the server's clock, which every request reads. The expiry of a lock that is taken
// over or extended counts from the time just read. That of a new lock is estimated beforehand, and
// if the reply to the same request does not confirm it, it is corrected before Acquire returns. So
// a client's clock may be wrong, and may jump. A lock may live up to 50 ms past its ttl. When the
// server's clock jumps forward, or a server whose clock is ahead takes its place, locks expire
// early by that much; if that could do harm, use [locker.Lease.Fence].
//
// # Cost
//
// In round trips: 1 to acquire a free lock or be refused, 3 to take over one that has expired, 2 to
// extend or release, 1 for a fencing number (3 or 4 for the first after the counter was lost). A
// Locker's first Acquire also asks for the time. An Acquire that creates a lock and is much slower
// than those before takes 2 more, as does, once a minute, releasing a lock on whose channel the
// user may not publish.
//
// # Contexts and timeouts
//
// By default redigo waits for a reply without limit. A Locker waits for 3 s in each round trip,
// or until ctx's deadline, whatever read timeout a connection was dialed with; when ctx is
// canceled, a method returns within that time. A method that waits for a connection returns as
// soon as ctx ends, and leaves its dial running in the background: give the Dial function a
// timeout. A call whose deadline is nearer than 3 s runs in a goroutine, and if the pool has a
// TestOnBorrow, so does each call's borrowing; each costs some microseconds.
//
// After a restart of the server, each connection that the pool still holds fails one operation,
// unless the pool has a TestOnBorrow that detects it.
package redigo

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/pubsub"
	"github.com/gomodule/redigo/redis"
)

var (
	_ locker.Fencer  = (*Locker)(nil)
	_ locker.Watcher = (*Locker)(nil)

	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

const (
	defaultPrefix = "locker:"

	longest = 7 * 24 * time.Hour // ttl

	// outlives is how long the server keeps a key beyond its lock's ttl, about.
	outlives = 24 * time.Hour
)

// garbage is the expiry on the server, in seconds, of a key that is written for ttl. Every write
// of the key sets it again, so it is always later than the expiry in the value, and never ends a
// lock.
func garbage(ttl time.Duration) int64 { return int64((ttl + outlives) / time.Second) }

var errNilPool = misuse.New("redigo: nil pool")

// Locker keeps locks on the server that a pool's connections lead to. It is safe for concurrent
// use. Lockers whose pools lead to the same database and whose prefixes are the same share their
// locks.
type Locker struct {
	pool   *redis.Pool
	prefix string // of the locks
	book   string // of all else
	clock  *clock
	calls  inflight.Calls
	mutes  mutes
	hub    *pubsub.Hub

	id     string // with serial, the name of a passing key
	serial atomic.Uint64

	takers atomic.Int64 // number of calls that are getting a connection
	start  time.Time
	used   atomic.Int64 // when a connection was last given back: nanoseconds after start
}

// Option changes how a Locker works.
type Option func(*options)

type options struct {
	prefix      string
	clientClock bool
}

// WithPrefix sets the prefix of the locks' keys. The default, used if prefix is empty, is
// "locker:".
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithClientClock computes expiries from this machine's wall clock, for servers that have no TIME
// (Redis before 2.6, some look-alikes). All processes that use the same locks must then use it, and
// their clocks must agree: a lock is taken over early by as much as the taker's clock is ahead of
// the holder's.
func WithClientClock() Option { return func(o *options) { o.clientClock = true } }

// New returns a Locker on pool, whose connections must implement [redis.ConnWithTimeout], as
// redigo's do. With a nil pool every operation fails. The caller closes the pool.
func New(pool *redis.Pool, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.prefix == "" {
		o.prefix = defaultPrefix
	}
	// No lock's key begins with the byte that the names of bookkeeping begin with.
	mark := "!"
	if o.prefix[0] == '!' {
		mark = "#"
	}
	l := &Locker{
		pool:   pool,
		prefix: o.prefix,
		book:   mark + o.prefix,
		clock:  newClock(o.clientClock),
		id:     rand.Text(),
		start:  time.Now(),
	}
	l.hub = pubsub.New(l.subscriber, ioTimeout)
	return l
}

// Acquire implements [locker.Locker]. A ttl under 1 ms or over 7 days is [locker.ErrInvalidTTL].
// The error wraps its cause if the key holds something other than a lock, if the pool is nil,
// closed or exhausted ([redis.ErrPoolExhausted]), if the server cannot be reached, does not answer
// for 3 s, or refuses to write, and if the value changes under the operation four times in a row.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	if err := checkTTL(ttl); err != nil {
		return false, err
	}
	return operate(ctx, l, key, token, func(o *operation) (bool, error) { return o.acquire(token, ttl) })
}

// Extend implements [locker.Locker]. It waits for calls for the same token that their callers have
// left behind. The errors are those of Acquire.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	if err := checkTTL(ttl); err != nil {
		return false, err
	}
	if err := l.calls.Wait(ctx, token); err != nil {
		return false, err
	}
	return operate(ctx, l, key, token, func(o *operation) (bool, error) { return o.extend(token, ttl) })
}

// Release implements [locker.Locker]. It wakes the watchers of the lock on all Lockers. It waits
// for calls for the same token that their callers have left behind. The errors are those of
// Acquire.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	if err := l.calls.Wait(ctx, token); err != nil {
		return false, err
	}
	return operate(ctx, l, key, token, func(o *operation) (bool, error) { return o.release(token) })
}

// Fence implements [locker.Fencer]. The numbers come from one counter for all locks of a prefix,
// which has no expiry. A missing counter starts at the server's time in microseconds since 1970,
// so numbers keep growing after a restart without data or an eviction, unless the server's clock
// was set back. After a failover to a replica that lags, or a restart with old data, numbers may
// repeat. The errors are those of Acquire.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	fence, err = operate(ctx, l, key, token, func(o *operation) (uint64, error) { return o.fence(token) })
	return fence, fence > 0, err
}

func checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond || ttl > longest {
		return fmt.Errorf("%w: %v is not between 1ms and %v", locker.ErrInvalidTTL, ttl, longest)
	}
	return nil
}

// passing returns the name of a key that no other call uses.
func (l *Locker) passing() string {
	return l.book + "tmp:" + l.id + strconv.FormatUint(l.serial.Add(1), 10)
}
