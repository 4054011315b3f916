package redigo

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redisscan"
	"github.com/gomodule/redigo/redis"
)

// Inspect implements [locker.Inspector], in one request. There is no queue, so the number of
// waiters is not known. A plain time, which is a lock without an owner, and any other value that is
// no lock of this package are errors. Unlike all other operations, Inspect and List are answered by
// a replica as well, which may lag. [locker.Break] changes nothing there: it is an error,
// [locker.ErrNotHeld] for a lock that the replica does not know.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info, err := operate(ctx, l, key, "", (*operation).inspect)
	if err != nil {
		return locker.Info{Key: key}, err
	}
	info.Key = key
	return info, nil
}

func (o *operation) inspect() (locker.Info, error) {
	replies, err := o.do(o.timed(command{"GET", o.key})...)
	if err != nil {
		return locker.Info{}, err
	}
	now, err := o.time(replies[len(replies)-1])
	if err != nil {
		return locker.Info{}, err
	}
	info := locker.Info{Waiters: -1}
	held, exists, err := get(replies[0])
	if err != nil || !exists || held.expired(now) {
		return info, err
	}
	left := time.Duration(min(held.expiry-now/1000, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	if held.token == "" {
		return info, fmt.Errorf("%w: a plain time, %v in the future", errForeign, left)
	}
	info.Token, info.TTL = held.token, left
	return info, nil
}

// List implements [locker.Lister]. It walks through all keys of the server with SCAN, about a
// thousand in one request, and makes a request for each lock. It remembers the keys that it has
// met, since SCAN repeats itself. The error is [errors.ErrUnsupported] if the server does not know
// SCAN (Redis before 2.8) or does not allow it.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		locks := redisscan.Locks{
			KeyPrefix: l.prefix,
			Inspect:   func(key string) (locker.Info, error) { return l.Inspect(ctx, key) },
			IsForeign: func(err error) bool { return errors.Is(err, errForeign) },
		}
		scan := func(cursor uint64, match string) (redisscan.Page, error) {
			return operate(ctx, l, "", "", func(o *operation) (redisscan.Page, error) { return o.scan(cursor, match) })
		}
		locks.List(prefix, []redisscan.Scan{scan}, yield)
	}
}

func (o *operation) scan(cursor uint64, match string) (page redisscan.Page, err error) {
	replies, err := o.do(command{"SCAN", cursor, "MATCH", match, "COUNT", 1000})
	var refused *refusal
	if errors.As(err, &refused) && unknown(refused.cause) {
		return page, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return page, err
	}
	parts, err := redis.Values(replies[0], nil)
	if err == nil && len(parts) == 2 {
		page.Next, err = redis.Uint64(parts[0], nil)
		if err == nil {
			page.Keys, err = redis.Strings(parts[1], nil)
		}
		return page, err
	}
	return page, fmt.Errorf("SCAN: unexpected reply %.64q", fmt.Sprint(replies[0]))
}
