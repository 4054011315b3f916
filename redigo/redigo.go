// Package redigo keeps locks on a Redis server through a [redis.Pool] of github.com/gomodule/redigo. It
// uses neither scripts nor options of SET, so it also runs on old servers, and on proxies and look-alikes
// that know MULTI and WATCH.
//
//	pool := &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) {
//		return redis.DialContext(ctx, "tcp", "localhost:6379", redis.DialConnectTimeout(5*time.Second))
//	}}
//	lease, err := locker.Lock(ctx, redigo.New(pool), "invoice/42", 30*time.Second)
//
// # What is on the server
//
// The key of a lock is the prefix followed by the lock's name, and its value is `<expiry>:<token>`, the
// expiry in milliseconds since 1970. It is the classic lock of SETNX, GET and GETSET: a key whose time has
// come is free, and who wants it takes it over; but by a GETSET that is carried out only if the value is
// still the expired one, so that those who lose the race change nothing. A key also has an expiry on the
// server, 14 days from the last write: that is for keys which nobody asks for any more, and never decides
// who holds a lock. The longest ttl is 7 days, and a longer one is [locker.ErrInvalidTTL].
//
// A value that is a plain number, as hand-written scripts of this kind leave, is a lock without an owner
// which expires at that Unix time, in seconds or milliseconds by its magnitude. It is honoured, and taken
// over once expired. Any other value, a number too small to be such a time, and any other type, is an error
// and is left alone.
//
// Beside the locks there are, all beginning with "!" (with "#" if the prefix begins with "!"): the counter
// of fencing numbers, one for the prefix; keys that last for the length of one transaction; and a channel.
// An ACL has to allow these, and should allow PUBLISH and SUBSCRIBE on channels called as the locks' keys:
// without, locks work and waiters poll. In Redis Cluster a lock's key and the passing one rarely share a
// slot, so Acquire is an error there (CROSSSLOT): Cluster is not supported. An eviction policy for keys
// that have an expiry (volatile-lru and so on) may take locks away.
//
// # Time
//
// Expiries are on the server's clock, which rides in every request: a lock that is taken over or extended
// gets the time just read, and one that is created an expiry reckoned beforehand, which the reply to the
// same request confirms, or it is corrected before Acquire returns. So it does not matter whether a
// client's clock is right, or jumps. A lock may live up to 50 ms past its ttl. When the server's clock jumps
// forward, or a server whose clock is ahead takes its place, locks expire early by that much;
// [locker.Lease.Fence] is for those who cannot have that.
//
// # Cost
//
// In round trips: 1 to acquire a free lock or be refused, 3 to take over one that has expired, 2 to extend
// or release, 1 for a fencing number. The first of a Locker asks for the time beforehand, and one that
// creates a lock and is a good deal slower than those before takes 2 more. Beside the pool's connections,
// Watch has one for all watchers of a Locker, which it dials with the pool's Dial function, and closes half
// a minute after the last of them has gone.
//
// # Contexts and timeouts
//
// Redigo by default waits without bound for a reply. Here it is for 3 s in each round trip, or until ctx's
// deadline, whatever read timeout a connection was dialled with; when ctx is cancelled a method returns
// within that time. While it waits for a connection, it returns at once when ctx ends, and leaves a dial in
// the background: give the Dial function a timeout. A call whose deadline is nearer than 3 s runs in a
// goroutine, and so does each call's borrowing if the pool has a TestOnBorrow: some microseconds each.
//
// When the server has been restarted, each connection that the pool still holds costs one operation an
// error, unless the pool has a TestOnBorrow that finds out.
package redigo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/gomodule/redigo/redis"
)

var (
	_ locker.Fencer  = (*Locker)(nil)
	_ locker.Watcher = (*Locker)(nil)
)

const (
	defaultPrefix = "locker:"

	longest = 7 * 24 * time.Hour // ttl

	// garbage is the expiry of a key on the server, in seconds. It is longer than any ttl and always the
	// same, so that it never ends a lock.
	garbage = 14 * 24 * 60 * 60
)

var errNilPool = errors.New("the pool is nil")

// Locker keeps locks on the server that a pool's connections lead to. It is safe for concurrent use.
// Lockers whose pools lead to the same database and whose prefixes are the same share their locks.
type Locker struct {
	pool   *redis.Pool
	prefix string // of the locks
	book   string // of all else
	clock  *clock
	calls  inflight.Calls
	mute   atomic.Bool // the server refuses PUBLISH

	subscriber *subscriber

	id     string // with serial, the name of a passing key
	serial atomic.Uint64

	takers atomic.Int64 // who are getting a connection
	start  time.Time
	used   atomic.Int64 // when a connection was last given back: nanoseconds after start
}

// Option changes how a Locker works.
type Option func(*options)

type options struct {
	prefix      string
	clientClock bool
}

// WithPrefix sets what the name of every lock's key on the server begins with. The default is "locker:";
// an empty prefix is replaced by the default.
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithClientClock reckons expiries from this machine's wall clock: for servers that have no TIME (Redis
// before 2.6, some look-alikes). All that use the same locks must then do so, and must have clocks that
// agree: a lock is taken over early by as much as the taker's clock is ahead of the holder's.
func WithClientClock() Option { return func(o *options) { o.clientClock = true } }

// New returns a Locker on pool, whose connections must know timeouts ([redis.ConnWithTimeout]), as redigo's
// do. With a nil pool every operation fails. Whoever made the pool closes it.
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
	l.subscriber = newSubscriber(l.book+"watch", l.dial)
	return l
}

// Acquire implements [locker.Locker]: true when token holds the lock now, false when another does. A ttl
// under 1 ms or over 7 days is [locker.ErrInvalidTTL]. A key that holds something else than a lock, a pool
// that is nil, closed or exhausted ([redis.ErrPoolExhausted]), a server that cannot be reached, says
// nothing for 3 s, or refuses to write is an error that wraps its cause. So is a value that changes under
// the operation four times running.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	if err := checkTTL(ttl); err != nil {
		return false, wrap("acquire", key, err)
	}
	return operate(ctx, l, "acquire", key, token, func(o *operation) (bool, error) { return o.acquire(token, ttl) })
}

// Extend implements [locker.Locker]: true when token held the lock, and holds it for ttl from now. It waits
// behind calls for the same token whose callers have left them. Errors are as of Acquire.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	if err := checkTTL(ttl); err != nil {
		return false, wrap("extend", key, err)
	}
	if err := l.calls.Wait(ctx, token); err != nil {
		return false, wrap("extend", key, err)
	}
	return operate(ctx, l, "extend", key, token, func(o *operation) (bool, error) { return o.extend(token, ttl) })
}

// Release implements [locker.Locker]: true when token held the lock, which is free now. It wakes those that
// watch it, on any Locker. It waits behind calls for the same token whose callers have left them. Errors are
// as of Acquire.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	if err := l.calls.Wait(ctx, token); err != nil {
		return false, wrap("release", key, err)
	}
	return operate(ctx, l, "release", key, token, func(o *operation) (bool, error) { return o.release(token) })
}

// Fence implements [locker.Fencer]. The numbers come from one counter for all locks of a prefix, which has
// no expiry; they grow for as long as the server keeps its data. Errors are as of Acquire.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	fence, err = operate(ctx, l, "fence", key, token, func(o *operation) (uint64, error) { return o.fence(token) })
	return fence, fence > 0, err
}

func checkTTL(ttl time.Duration) error {
	switch {
	case ttl < time.Millisecond:
		return fmt.Errorf("%w: %v is under a millisecond", locker.ErrInvalidTTL, ttl)
	case ttl > longest:
		return fmt.Errorf("%w: %v is over %v", locker.ErrInvalidTTL, ttl, longest)
	}
	return nil
}

func wrap(op, key string, err error) error {
	var refused *refusal
	if errors.As(err, &refused) && refused.command == "TIME" {
		err = fmt.Errorf("the server does not tell its time (WithClientClock does without): %w", err)
	}
	return fmt.Errorf("redigo: %s %q: %w", op, key, err)
}

// passing is a key's name that no other call uses.
func (l *Locker) passing() string {
	return l.book + "tmp:" + l.id + strconv.FormatUint(l.serial.Add(1), 10)
}
