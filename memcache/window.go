package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/window"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window, in two
// requests: incr for this window and get for the previous one. The first count in a window takes a
// third request, add. With windows of a minute, the count is stored in the item
// "!window:locker:60000:", followed by the number of the minute since 1970, ":" and key, or a hash
// of that as for locks. It is added with its expiration, two to three seconds after the end of the
// next window.
//
// The clients' clocks decide which window is the current one, since gomemcache cannot ask memcached
// for the time. Processes whose clocks differ by d count in different windows for as long as d in
// each window, so up to twice as many calls may be allowed in that time. With synchronized clocks
// and windows of a second or more, this is not noticeable. An eviction or a restart loses counts.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	w := l.windowOf(key, per)
	return w.count(ctx, n)
}

// CountUnder is Count, but takes n back if the rule does not allow it, in one more request. In the
// meantime, other calls may be denied because of n, so a client that keeps many calls in flight
// while it is denied gets less than the limit. If taking n back fails, CountUnder returns an error,
// and n may have been counted.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	w := l.windowOf(key, r.Per)
	c, err = w.count(ctx, n)
	if counted = err == nil && r.Used(c) <= r.Limit; err != nil || counted || n == 0 {
		return c, counted, err
	}
	_, err = w.send(ctx, func() (uint64, error) { return l.client.Decrement(w.item(0), uint64(n)) })
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		err = nil // the item was evicted
	}
	c.Current -= n
	return c, false, err
}

// clientWindow is a key's current window by the client's clock.
type clientWindow struct {
	l      *Locker
	key    string
	per    time.Duration
	number int64
	left   time.Duration
}

func (l *Locker) windowOf(key string, per time.Duration) *clientWindow {
	now, length := time.Now().UnixMicro(), per.Microseconds()
	left := time.Duration(length-now%length) * time.Microsecond
	return &clientWindow{l, key, per, now / length, left}
}

func (w *clientWindow) count(ctx context.Context, n int64) (c window.Counts, err error) {
	if err := ctx.Err(); err != nil {
		return c, err
	}
	if w.l.client == nil {
		return c, errNoClient
	}
	c.Left = w.left
	if n == 0 {
		c.Current, err = w.read(ctx, 0)
	} else {
		c.Current, err = w.add(ctx, n)
	}
	if err == nil {
		c.Previous, err = w.read(ctx, 1)
	}
	return c, err
}

func (w *clientWindow) add(ctx context.Context, n int64) (int64, error) {
	k := w.item(0)
	for range passes {
		sum, err := w.send(ctx, func() (uint64, error) { return w.l.client.Increment(k, uint64(n)) })
		if !errors.Is(err, gomemcache.ErrCacheMiss) {
			return int64(min(sum, math.MaxInt64)), err
		}
		_, err = w.send(ctx, func() (uint64, error) {
			return 0, w.l.client.Add(&gomemcache.Item{
				Key: k, Value: strconv.AppendInt(nil, n, 10), Expiration: expiration(time.Now(), 2*w.per)})
		})
		if !errors.Is(err, gomemcache.ErrNotStored) {
			return n, err
		}
	}
	return 0, errChanging
}

// read returns the count of a window: 0 is this one, 1 the previous one.
func (w *clientWindow) read(ctx context.Context, before int64) (int64, error) {
	item, err := inflight.Do(ctx, &w.l.calls, w.key, w.l.timeout(), func() (*gomemcache.Item, error) {
		return w.l.client.Get(w.item(before))
	})
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// A number that was decremented is padded with spaces.
	n, err := strconv.ParseUint(strings.TrimRight(string(item.Value), " "), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the item %q is not a count: %d bytes", item.Key, len(item.Value))
	}
	return int64(min(n, math.MaxInt64)), nil
}

func (w *clientWindow) send(ctx context.Context, request func() (uint64, error)) (uint64, error) {
	return inflight.Do(ctx, &w.l.calls, w.key, w.l.timeout(), request)
}

// item returns the key of the item for this window, or for an earlier one.
func (w *clientWindow) item(before int64) string {
	mark := "!"
	if w.l.prefix[0] == '!' {
		mark = "&"
	}
	return itemKey(mark+"window:"+w.l.prefix, strconv.FormatInt(w.per.Milliseconds(), 10)+":"+
		strconv.FormatInt(w.number-before, 10)+":"+w.key)
}
