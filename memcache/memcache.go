// Package memcache is a [locker.Locker] on memcached, through github.com/bradfitz/gomemcache.
//
//	client := gomemcache.New("127.0.0.1:11211")
//	lease, err := locker.Lock(ctx, memcache.New(client), "invoice/42", 30*time.Second)
//
// Both packages are called memcache; this documentation imports the client as gomemcache.
//
// # On the server
//
// The lock of a name is the item at the prefix followed by the name, so that people can look with
// "get locker:invoice/42". Its value is the token that holds the lock, its flags are 1282368363 (the bytes
// "Lock"), and its expiration is the lock's. An item with other flags is not this package's: Acquire,
// Extend and Release report it as an error and leave it alone.
//
// A name that memcached or its client refuses is kept at "#sha256:" and the hexadecimal SHA-256 of prefix
// and name ("%sha256:" when the prefix begins with "#"): one with a space or a control character, or one
// that is longer than 250 bytes with its prefix.
//
// Acquire is one add, and one gets more when it is refused. Extend is gets and cas. Release is gets and a
// cas with an expiration in the past, which deletes the item at once, and only when nothing has changed
// since the token was compared: a release that is late never frees the lock of another.
//
// # Time
//
// memcached counts whole seconds, on a clock that it looks at once a second and that therefore steps by
// two when those looks have drifted across the turn of a second (on an idle server about every twenty
// minutes, more often under load). An item stored for N seconds was measured to live between N-2 and N.
// So a ttl is rounded up to seconds, and two are added: no lock ends early, and it ends at most two
// seconds after its rounded ttl, less than three after its ttl. More than 30 days, with those two seconds,
// memcached would read as a date: the longest ttl is 30 days less two seconds, and more is
// [locker.ErrInvalidTTL].
//
// # Contexts
//
// The client knows no contexts, only its Timeout (500 ms unless it is set), for dialling and again for the
// exchange. A call whose context has a deadline nearer than that leaves the client behind when its time is
// up; the exchange ends by the client's Timeout, and a later call for the same token on the same Locker
// waits for that end first. Other calls return within the client's Timeout of their context's end, or twice
// that if they have to dial. After the end no further request is started. A client with a DialContext of its
// own must let it end with the context that it is given.
//
// # What memcached does not promise
//
// It is a cache. Where these matter, use a backend that keeps its data:
//
//   - Eviction. A server that runs out of memory drops items before their time, locks among them; the next
//     one to ask gets the lock, and the holder learns of it at its next Extend. Give locks a server of
//     their own, and watch its evictions counter. With -M it refuses new items instead, which is an error
//     here; and as it takes memory to extend and to release, a lock may then last until its end.
//   - Restart. All locks are gone. An Extend or Release that read before the restart and writes after it
//     may meet a new item with an equal cas number, as those numbers start again, and then overwrites or
//     frees the lock of another.
//   - A suspended server. Its clock stands still with it and is behind until its first look after: what is
//     stored right then ends early by as long as the server was stopped. The same goes for a machine that
//     is so overloaded that the server does not run for seconds.
//   - Several servers. The client spreads names over its list, in order. All clients need the same list at
//     all times: while lists differ, so do the servers on which they look for a lock. A server that is down
//     is an error; its locks do not move. An element that stands in for a server that is down, as some
//     proxies have it, means two holders.
//   - A reply that is lost. The operation is then an error of unknown outcome. The client does not repeat
//     it; repeat it with the same token.
//   - No cas. A server started with -C keeps no cas numbers: there Extend and Release are errors.
//
// There is no push and no line: waiters poll. There are no fencing numbers, since a counter would start
// again after an eviction or restart.
package memcache

import (
	"context"
	"errors"
	"fmt"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
)

var _ locker.Locker = (*Locker)(nil)

const (
	// flags mark an item as a lock of this package: the bytes "Lock".
	flags = 0x4c6f636b

	// maxToken is the length of the longest token in bytes.
	maxToken = 1024

	// passes is how often the steps of an operation are made when the item changes under them.
	passes = 3
)

var (
	errNoClient = errors.New("the client is nil")
	errNoCAS    = errors.New("the server keeps no cas numbers (memcached -C)")
	errChanging = errors.New("the item kept changing between reading and writing it")
)

// Locker is a [locker.Locker] on memcached. It holds nothing but the client and is safe for concurrent use.
type Locker struct {
	client *gomemcache.Client
	prefix string
	calls  inflight.Calls
}

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	prefix string
}

// WithPrefix sets what the items' keys begin with, "locker:" by default, which also stands for "". Locks
// under different prefixes are independent unless prefix and name together give the same key. A prefix
// may have any bytes and any length, but when memcached refuses it, all keys are hashes.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a Locker on the servers of client. A caller closes client, if at all, when the Locker is no
// longer used. With a nil client every operation is an error.
//
// Every goroutine that uses the Locker at one time takes a connection, of which the client keeps
// MaxIdleConns (2 by default) a server: set it to the usual number of concurrent calls.
func New(client *gomemcache.Client, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.prefix == "" {
		o.prefix = "locker:"
	}
	return &Locker{client: client, prefix: o.prefix}
}

// Acquire takes the lock of key for token, for ttl and less than three seconds more, with one request, or
// two when it is refused. See [locker.Locker] for what the results mean. A ttl over 30 days less two
// seconds is [locker.ErrInvalidTTL]; an item that is no lock of this package is an error, as is a server
// that cannot be reached, does not answer within the client's Timeout, or is out of memory. When ctx ends
// meanwhile the error wraps ctx's.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	acquired, err = l.acquire(ctx, key, token, ttl)
	if err != nil {
		return false, fmt.Errorf("memcache: acquire %q: %w", key, err)
	}
	return acquired, nil
}

// Extend sets what remains of the lock of key to ttl and less than three seconds more, when token holds
// it, with two requests. See [locker.Locker] for what the results mean, and [Locker.Acquire] for errors.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	extended, err = l.extend(ctx, key, token, ttl)
	if err != nil {
		return false, fmt.Errorf("memcache: extend %q: %w", key, err)
	}
	return extended, nil
}

// Release frees the lock of key when token holds it, with two requests. See [locker.Locker] for what the
// results mean, and [Locker.Acquire] for errors. A Release that is repeated after an error of unknown
// outcome returns false when the first one was carried out after all.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	released, err = l.release(ctx, key, token)
	if err != nil {
		return false, fmt.Errorf("memcache: release %q: %w", key, err)
	}
	return released, nil
}

func (l *Locker) acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.begin(ctx, token); err != nil {
		return false, err
	}
	expiration, err := seconds(ttl)
	if err != nil {
		return false, err
	}
	k := itemKey(l.prefix, key)
	var s state
	for range passes {
		err := l.send(ctx, token, l.client.Add, &gomemcache.Item{
			Key: k, Value: []byte(token), Flags: flags, Expiration: expiration})
		if !errors.Is(err, gomemcache.ErrNotStored) {
			return err == nil, err
		}
		// Somebody holds it. If that is token itself, after a lost reply, this is an Extend.
		s, err = l.swap(ctx, k, token, expiration)
		if err != nil || s == swapped || s == another {
			return s == swapped, err
		}
	}
	if s == changed {
		return false, errChanging
	}
	// Each time somebody held the lock when it was to be taken, and nobody when it was looked at: it is
	// certain that this call did not take it.
	return false, nil
}

func (l *Locker) extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.begin(ctx, token); err != nil {
		return false, err
	}
	expiration, err := seconds(ttl)
	if err != nil {
		return false, err
	}
	return l.replace(ctx, key, token, expiration)
}

func (l *Locker) release(ctx context.Context, key, token string) (bool, error) {
	if err := l.begin(ctx, token); err != nil {
		return false, err
	}
	const past = -1 // expired as soon as it is stored
	return l.replace(ctx, key, token, past)
}

// replace gives the lock of key another expiration when token holds it.
func (l *Locker) replace(ctx context.Context, key, token string, expiration int32) (bool, error) {
	k := itemKey(l.prefix, key)
	for range passes {
		s, err := l.swap(ctx, k, token, expiration)
		if err != nil || s != changed {
			return s == swapped, err
		}
	}
	return false, errChanging
}

// begin waits for what an earlier caller left behind for token: a late Release must not free what a
// later Acquire was told it has, nor a late Acquire take effect after a Release.
func (l *Locker) begin(ctx context.Context, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.client == nil {
		return errNoClient
	}
	return l.calls.Wait(ctx, token)
}

// state is how a swap ended.
type state int

const (
	changed state = iota // token held the lock when it was read, but the item changed before it was written
	swapped              // token held the lock, and it has the new expiration
	another              // another token holds the lock
	gone                 // nobody holds the lock
)

// swap gives the item at k another expiration if its value is token. It compares and writes in one atomic
// step: gets tells the item's number, which every change changes, and cas writes only at that number.
func (l *Locker) swap(ctx context.Context, k, token string, expiration int32) (state, error) {
	item, err := inflight.Do(ctx, &l.calls, token, l.timeout(), func() (*gomemcache.Item, error) {
		return l.client.Get(k)
	})
	switch {
	case errors.Is(err, gomemcache.ErrCacheMiss):
		return gone, nil
	case err != nil:
		return changed, err
	case item.Flags != flags || len(item.Value) == 0 || len(item.Value) > maxToken:
		return changed, fmt.Errorf("the item %q is no lock of this package: %d bytes with flags %d",
			k, len(item.Value), item.Flags)
	case string(item.Value) != token:
		return another, nil
	case item.CasID == 0:
		return changed, errNoCAS
	}
	err = l.send(ctx, token, l.client.CompareAndSwap, &gomemcache.Item{
		Key: k, Value: item.Value, Flags: flags, Expiration: expiration, CasID: item.CasID})
	switch {
	case err == nil:
		return swapped, nil
	case errors.Is(err, gomemcache.ErrCASConflict):
		return changed, nil
	case errors.Is(err, gomemcache.ErrCacheMiss):
		return gone, nil
	}
	return changed, err
}

// send makes one of the client's requests that write item.
func (l *Locker) send(ctx context.Context, token string, request func(*gomemcache.Item) error,
	item *gomemcache.Item) error {
	_, err := inflight.Do(ctx, &l.calls, token, l.timeout(), func() (struct{}, error) {
		return struct{}{}, request(item)
	})
	return err
}

// timeout is how long the client waits for a server.
func (l *Locker) timeout() time.Duration {
	if l.client.Timeout != 0 {
		return l.client.Timeout
	}
	return gomemcache.DefaultTimeout
}

// seconds is the expiration with which an item lives for at least ttl, whatever the phase of the server's
// clock, and at most two seconds longer than the whole seconds of ttl. It is never 0, which is for ever.
func seconds(ttl time.Duration) (int32, error) {
	const (
		spare = 2                 // by how much the server's clock may be behind and then catch up
		most  = 30 * 24 * 60 * 60 // a larger number is a date to memcached
	)
	whole := ttl / time.Second
	if ttl%time.Second > 0 {
		whole++
	}
	if ttl < time.Millisecond || whole > most-spare {
		return 0, fmt.Errorf("%w: %v is not between 1ms and %v", locker.ErrInvalidTTL, ttl,
			(most-spare)*time.Second)
	}
	return int32(whole + spare), nil
}
