package redislock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redisscan"
)

// Inspect reports who holds a lock.
func (l *Locks) Inspect(ctx context.Context, key string) (locker.Info, error) {
	s := NewSending(ctx, "")
	info, err := Call(&l.Caller, s, func() (locker.Info, error) {
		reply, err := l.inspect(key, s)
		if err != nil {
			return locker.Info{}, err
		}
		return ParseInfo(reply)
	})
	info.Key = key
	return info, err
}

// inspect runs the script, with the queue of a semaphore if the key may be that of a permit. If that
// queue may not be read, or is in another slot of a Cluster, only the lock is inspected.
func (l *Locks) inspect(key string, s *Sending) (any, error) {
	keys := l.names.Keys(key)
	permits := l.queueIfPermit(key)
	if permits != "" && keys.Queue != "" {
		reply, err := l.send(s, Eval{Script: Inspect, Key1: keys.Lock, Keys: []string{keys.Queue, permits}})
		switch {
		case err == nil:
			return reply, nil
		case l.requests.IsReply(err, "CROSSSLOT"):
			l.slots.Store(true)
		case !l.requests.IsReply(err, "NOPERM"):
			return nil, err
		}
	}
	reply, err := l.eval(Inspect, keys.Lock, keys.Queue, s, 0)
	if err != nil && keys.Queue != "" && l.requests.IsReply(err, "TRYAGAIN") {
		reply, err = l.eval(Inspect, keys.Lock, "", s, 0)
	}
	return reply, err
}

// List yields the locks on the servers that scans returns whose keys begin with prefix.
func (l *Locks) List(ctx context.Context, prefix string,
	scans func(context.Context) ([]redisscan.Scan, error)) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		var servers []redisscan.Scan
		err := l.Err
		if err == nil {
			servers, err = scans(ctx)
		}
		if err != nil {
			yield(locker.Info{}, err)
			return
		}
		locks := redisscan.Locks{
			KeyPrefix: l.names.prefix,
			Inspect:   func(key string) (locker.Info, error) { return l.Inspect(ctx, key) },
			AtOnce:    minLooks,
			IsForeign: l.isAboutValue,
		}
		locks.List(prefix, servers, func(info locker.Info, err error) bool {
			if ctxErr := ctx.Err(); ctxErr != nil && err == nil { // it was inspected before ctx ended
				yield(locker.Info{}, ctxErr)
				return false
			}
			return yield(info, err)
		})
	}
}

// isAboutValue reports whether an error from Inspect is about the value at the key.
func (l *Locks) isAboutValue(err error) bool {
	return l.requests.IsReply(err, "WRONGTYPE") || errors.Is(err, ErrForeign) || errors.Is(err, locker.ErrInvalidToken)
}

// ParseInfo reads the reply to an [Inspect]. A value that no adapter of this package has written is
// an error.
func ParseInfo(reply any) (locker.Info, error) {
	list, _ := reply.([]any)
	if len(list) != 3 {
		return locker.Info{}, fmt.Errorf("unexpected reply to an inspection: %v", reply)
	}
	value, isHeld := list[0].(string)
	left, ok1 := list[1].(int64)
	waiters, ok2 := list[2].(int64)
	info := locker.Info{Waiters: int(waiters)}
	switch {
	case !ok1 || !ok2 || !isHeld && list[0] != nil:
		return locker.Info{}, fmt.Errorf("unexpected reply to an inspection: %v", reply)
	case !isHeld:
		return info, nil
	case value == "":
		return locker.Info{}, fmt.Errorf("%w: the lock's value is empty", locker.ErrInvalidToken)
	}
	if err := CheckHolder(value); err != nil {
		return locker.Info{}, err
	}
	token := decodeToken(value)
	if strings.HasPrefix(value, offered) { // it has no token yet; see [Locks.Release]
		token = value
	} else if EncodeToken(token) != value {
		return locker.Info{}, fmt.Errorf("%w: the lock's value is %.64q, which stands for none", locker.ErrInvalidToken, value)
	}
	info.Token, info.TTL = token, -1
	if left >= 0 {
		const longest = math.MaxInt64 / int64(time.Millisecond)
		info.TTL = time.Duration(min(left, longest)) * time.Millisecond
	}
	return info, nil
}

// decodeToken is the inverse of [EncodeToken].
func decodeToken(value string) string { return strings.TrimPrefix(value, escaped) }
