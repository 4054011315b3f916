// Package memcache keeps locks in memcached, through github.com/bradfitz/gomemcache.
//
//	client := gomemcache.New("127.0.0.1:11211")
//	lease, err := locker.Lock(ctx, memcache.New(client), "invoice/42", 30*time.Second)
//
// Both packages are called memcache; this documentation imports the client as gomemcache.
//
// # On the server
//
// The lock of a name is the item whose key is the prefix followed by the name, so "get
// locker:invoice/42" shows it. Its value is the token that holds the lock, its flags are 1282368363
// (the bytes "Lock"), and its expiration is the lock's. An item with other flags does not belong to
// this package: Acquire, Extend and Release return an error and leave it alone.
//
// A name that memcached or its client refuses, because it contains a space or a control character
// or is longer than 250 bytes with its prefix, is kept at "#sha256:" followed by the hexadecimal
// SHA-256 of prefix and name ("%sha256:" if the prefix begins with "#").
//
// Acquire is one add, and if that is refused one gets. Extend is gets and cas. Release is gets and
// a cas with an expiration in the past, which deletes the item at once, and only if nothing has
// changed since the token was compared: a late Release never frees another's lock.
//
// # Time
//
// memcached counts whole seconds, on a clock that it reads once a second and that therefore steps
// by two when those readings have drifted across the turn of a second (about every twenty minutes
// on an idle server, more often under load). An item stored for N seconds was measured to live
// between N-2 and N. So a ttl is rounded up to seconds, and two are added: no lock ends early, and
// it ends at most two seconds after its rounded ttl, which is less than three after its ttl.
// memcached reads an expiration of more than 30 days as a date, so the longest ttl is 30 days less
// those two seconds. A longer one is [locker.ErrInvalidTTL].
//
// # Contexts
//
// The client does not support contexts. It has only a Timeout (500 ms by default), which bounds
// the dial and again the exchange. A call whose context has a nearer deadline leaves the client
// behind when its time is up. The exchange ends within the client's Timeout, and a later call for
// the same token on the same Locker waits for that. Other calls return within the client's
// Timeout of their context's end, or twice that if they dial. No request is started after the
// end. The client's DialContext function, if set, must return when its context ends.
//
// # What memcached does not promise
//
// It is a cache. Where the following matters, use a backend that keeps its data:
//
//   - Eviction. A server that runs out of memory drops items before their time, locks among them.
//     The next client that asks gets the lock, and the holder learns of it by its next Extend.
//     Give locks a server of their own, and watch its evictions counter. With -M the server
//     refuses new items instead, which is an error here. It then has no memory to extend or
//     release either, so a lock may last until its ttl ends.
//   - Restart. All locks are gone. An Extend or Release that read before the restart and writes
//     after it may meet a new item with an equal cas number, since those numbers start again, and
//     then overwrites or frees the lock of another.
//   - Suspension. The clock of a suspended server stands still and is behind until its first
//     reading after that. What is stored in that moment ends early by as long as the server was
//     stopped. The same happens on a machine so overloaded that the server does not run for
//     seconds.
//   - Several servers. The client spreads names over its list of servers, in order. All clients
//     need the same list at all times: while lists differ, so do the servers on which they look
//     for a lock. A server that is down is an error; its locks do not move. A proxy that replaces
//     a dead server with another can give a lock two holders.
//   - Lost replies. The call then returns an error, and the outcome is unknown. The client does not
//     repeat the request; repeat it with the same token.
//   - No cas. A server started with -C keeps no cas numbers: there, Extend and Release are errors.
//
// There is no push and no queue: waiters poll. There are no fencing numbers, since a counter would
// start again after an eviction or a restart.
package memcache

import (
	"context"
	"errors"
	"fmt"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/misuse"
)

var _ locker.Inspector = (*Locker)(nil)

const (
	// flags mark an item as a lock of this package: the bytes "Lock".
	flags = 0x4c6f636b

	// maxToken is the length of the longest token in bytes.
	maxToken = 1024

	// passes is how often an operation tries its steps when the item changes under them.
	passes = 3
)

var (
	errNoClient = misuse.New("memcache: nil client")
	errNoCAS    = errors.New("the server keeps no cas numbers (memcached -C)")
	errChanging = errors.New("the item kept changing between reading and writing it")
)

// Locker is a [locker.Locker] on memcached. It holds nothing but the client and is safe for
// concurrent use.
type Locker struct {
	client *gomemcache.Client
	prefix string
	calls  inflight.Calls
}

// Option configures a Locker made by [New].
type Option func(*options)

type options struct {
	prefix string
}

// WithPrefix sets the prefix of the items' keys. The default, used if prefix is empty, is
// "locker:". Locks under different prefixes are independent unless prefix and name together make
// the same key. A prefix may be any bytes of any length, but if memcached refuses it, all keys are
// hashes.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a Locker on the servers of client. The caller closes the client when the Locker is
// no longer used. With a nil client every operation returns an error.
//
// Each call takes a connection while it runs, and the client keeps only MaxIdleConns of them (2 by
// default) for each server: set it to the usual number of concurrent calls.
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

// Acquire takes the lock of key for token, for ttl and less than three seconds more. It takes one
// request, or two if it is refused. See [locker.Locker] for the results. The longest ttl is 30
// days less two seconds. An item that is not a lock of this package is an error, and so is a
// server that cannot be reached, does not answer within the client's Timeout, or is out of
// memory.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
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
		// It is held. If token itself holds it, after a lost reply, this is an Extend.
		s, err = l.swap(ctx, k, token, expiration)
		if err != nil || s == swapped || s == another {
			return s == swapped, err
		}
	}
	if s == changed {
		return false, errChanging
	}
	// Each time the lock was held when this call tried to take it, and free when it looked. So this
	// call has certainly not taken it.
	return false, nil
}

// Extend sets the remaining time of the lock of key to ttl and less than three seconds more if
// token holds it, with two requests. See [locker.Locker] for the results, and [Locker.Acquire] for
// errors.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	if err := l.begin(ctx, token); err != nil {
		return false, err
	}
	expiration, err := seconds(ttl)
	if err != nil {
		return false, err
	}
	return l.replace(ctx, key, token, expiration)
}

// Release frees the lock of key if token holds it, with two requests. See [locker.Locker] for the
// results, and [Locker.Acquire] for errors. A Release that is repeated after an error of unknown
// outcome reports false if the first one took effect after all.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	if err := l.begin(ctx, token); err != nil {
		return false, err
	}
	const past = -1 // expired as soon as it is stored
	return l.replace(ctx, key, token, past)
}

// Inspect reports who holds the lock of key, with one request. Its TTL is negative, since the
// client cannot read an item's expiration, and its number of waiters is not known. See
// [Locker.Acquire] for errors. An eviction leaves no trace, so a lock that was evicted is free.
// memcached cannot list its items.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info := locker.Info{Key: key}
	if err := l.begin(ctx, ""); err != nil {
		return info, err
	}
	item, err := l.read(ctx, itemKey(l.prefix, key), "")
	if err != nil {
		return info, err
	}
	info.Waiters = -1
	if item != nil {
		info.Token, info.TTL = string(item.Value), -1
	}
	return info, nil
}

// replace gives the lock of key another expiration if token holds it.
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

// begin waits for the calls for token that earlier callers have left behind: a late Release must
// not free the lock that a later Acquire has taken, nor may a late Acquire take effect after a
// Release.
func (l *Locker) begin(ctx context.Context, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.client == nil {
		return errNoClient
	}
	return l.calls.Wait(ctx, token)
}

// state is the outcome of a swap.
type state int

const (
	changed state = iota // token held the lock when it was read, but the item changed before it was written
	swapped              // token held the lock, and it has the new expiration
	another              // another token holds the lock
	gone                 // no token holds the lock
)

// swap gives the item at k another expiration if its value is token. It compares and writes in one
// atomic step: gets returns the item's number, which every change changes, and cas writes only at
// that number.
func (l *Locker) swap(ctx context.Context, k, token string, expiration int32) (state, error) {
	item, err := l.read(ctx, k, token)
	switch {
	case err != nil:
		return changed, err
	case item == nil:
		return gone, nil
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

// read returns the lock at k, or nil if it is free.
func (l *Locker) read(ctx context.Context, k, token string) (*gomemcache.Item, error) {
	item, err := inflight.Do(ctx, &l.calls, token, l.timeout(), func() (*gomemcache.Item, error) {
		return l.client.Get(k)
	})
	switch {
	case errors.Is(err, gomemcache.ErrCacheMiss):
		return nil, nil
	case err != nil:
		return nil, err
	case item.Flags != flags || len(item.Value) == 0 || len(item.Value) > maxToken:
		return nil, fmt.Errorf("the item %q is not a lock of this package: %d bytes with flags %d",
			k, len(item.Value), item.Flags)
	}
	return item, nil
}

// send makes one of the client's requests that write item.
func (l *Locker) send(ctx context.Context, token string, request func(*gomemcache.Item) error,
	item *gomemcache.Item) error {
	_, err := inflight.Do(ctx, &l.calls, token, l.timeout(), func() (struct{}, error) {
		return struct{}{}, request(item)
	})
	return err
}

// timeout returns how long the client waits for a server.
func (l *Locker) timeout() time.Duration {
	if l.client.Timeout != 0 {
		return l.client.Timeout
	}
	return gomemcache.DefaultTimeout
}

// seconds returns the expiration with which an item lives for at least ttl, whatever the phase of
// the server's clock, and at most two seconds longer than ttl in whole seconds. It is never 0,
// which means no expiration.
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
