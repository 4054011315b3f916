package redigo

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/gomodule/redigo/redis"
)

// This file has what a Cache keeps of loads, in the format of redisv9.Cache: the load of a key is a
// key of its own. While a load is under way its value is "L" and the version. After a failure it is
// "F", for how many milliseconds that is kept, a colon and the failure. Whatever writes a value, or
// deletes it, deletes the load.

func loadKey(key string) string { return bytecache.LoadKey(key, true) }

func loadText(version uint64) string { return "L" + strconv.FormatUint(version, 10) }

// store returns the commands that store a value, unless d is no time, and end the load of its key.
func store(key string, d time.Duration, b []byte) []command {
	if d <= 0 {
		return []command{{"DEL", key, loadKey(key)}}
	}
	return []command{{"PSETEX", key, millis(d), b}, {"DEL", loadKey(key)}}
}

// Look asks for all keys in one request, and in a second one begins the loads of those that need it.
func (s *cacheStore) Look(ctx context.Context, spare time.Duration, all ...*slots.Slot[[]byte]) error {
	_, err := cacheCall(ctx, s, all[0].Key, false, func(o *operation) (struct{}, error) {
		const each = 4
		var ask []command
		for _, slot := range all {
			value, load := slot.Key, loadKey(slot.Key)
			// The time that is left comes first, as in Get.
			ask = append(ask, command{"PTTL", value}, command{"GET", value}, command{"PTTL", load}, command{"GET", load})
		}
		replies, err := o.do(ask...)
		if err != nil {
			return struct{}{}, err
		}
		var begin []command
		var begun []*slots.Slot[[]byte]
		for i, slot := range all {
			load, begins, err := lookAt(slot, spare, replies[i*each:(i+1)*each])
			if err != nil {
				return struct{}{}, err
			}
			if begins {
				key := loadKey(slot.Key)
				hold := millis(slot.Hold)
				set := command{"SET", key, loadText(rand.Uint64() | 1), "PX", hold}
				if !strings.HasPrefix(load, "F") {
					set = append(set, "NX")
				}
				begin, begun = append(begin, set, command{"PEXPIRE", key, hold}, command{"GET", key}), append(begun, slot)
			}
		}
		if len(begin) == 0 {
			return struct{}{}, nil
		}
		if replies, err = o.do(begin...); err != nil {
			return struct{}{}, err
		}
		for i, slot := range begun {
			load, err := redis.String(replies[3*i+2], nil)
			if err == nil && len(load) > 1 {
				slot.Version, err = strconv.ParseUint(load[1:], 10, 64)
			}
			if err != nil {
				slot.Err = err
			}
		}
		return struct{}{}, nil
	})
	return err
}

// lookAt takes the replies for a slot. It returns the load that is kept and whether one is to begin.
func lookAt(slot *slots.Slot[[]byte], spare time.Duration, replies []any) (load string, begins bool, err error) {
	left, err := redis.Int64(replies[0], nil)
	if err != nil {
		return "", false, err
	}
	if value, err := redis.Bytes(replies[1], nil); err == nil && isFresh(left, spare) {
		slot.Found, slot.Value, slot.Left = true, value, -1
		if left >= 0 {
			slot.Left = time.Duration(left)*time.Millisecond - spare
		}
		if left < 0 || slot.Left >= slot.Ahead || slot.Hold <= 0 {
			return "", false, nil
		}
	}
	left, err = redis.Int64(replies[2], nil)
	if err != nil {
		return "", false, err
	}
	load, err = redis.String(replies[3], nil)
	if err != nil && !errors.Is(err, redis.ErrNil) {
		return "", false, err
	}
	if ms, failure, ok := strings.Cut(strings.TrimPrefix(load, "F"), ":"); ok {
		kept, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return "", false, err
		}
		if age := time.Duration(kept-left) * time.Millisecond; age < slot.Since && !slot.Found {
			slot.Failed, slot.Failure, slot.Age = true, failure, age
			return load, false, nil
		}
	}
	return load, slot.Hold > 0, nil
}

// Put stores each value, or failure, only if the load has not changed since it was read.
func (s *cacheStore) Put(ctx context.Context, all ...*slots.Slot[[]byte]) error {
	for _, slot := range all {
		stored, err := cacheCall(ctx, s, slot.Key, false, func(o *operation) (bool, error) {
			load := loadKey(slot.Key)
			replies, err := o.do(command{"WATCH", load}, command{"GET", load})
			if err != nil {
				return false, err
			}
			if kept, _ := redis.String(replies[1], nil); kept != loadText(slot.Version) {
				_, err := o.do(command{"UNWATCH"})
				o.watching = err != nil
				return false, err
			}
			commands := store(slot.Key, slot.TTL, slot.Value)
			if slot.Failed {
				ms := millis(slot.TTL)
				commands = []command{{"PSETEX", load, ms, "F" + strconv.FormatInt(ms, 10) + ":" + slot.Failure}}
			}
			results, err := o.multi(commands...)
			return results != nil, err
		})
		if err != nil {
			return err
		}
		slot.Stored = stored
	}
	return nil
}
