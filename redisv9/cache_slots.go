package redisv9

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/bytecache"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/redis/go-redis/v9"
)

// This file has what a Cache keeps of loads, and the scripts that keep it beside the values.
//
// The load of a key is a key of its own (bytecache.LoadKey). While a load is under way its value is
// "L" and the version. After a failure it is "F", for how many milliseconds that is kept, a colon and
// the failure. Whatever writes a value, or deletes it, deletes the load.

// putCached stores ARGV[1] for ARGV[2] milliseconds: as the value of KEYS[1], or if ARGV[5] is 1 as
// its load, KEYS[2]. With 0 milliseconds it deletes both. It does so if ARGV[3] is empty; or it is "+" and there is no fresh value, that
// is, one that lasts for more than ARGV[4] milliseconds or has no expiry (-1); or it is the load.
const putCached = `
local how = ARGV[3]
if how == '+' then
	local left = redis.call('pttl', KEYS[1])
	if left == -1 or left > tonumber(ARGV[4]) then
		return 0
	end
elseif how ~= '' and redis.call('get', KEYS[2]) ~= how then
	return 0
end
if ARGV[5] == '1' then
	redis.call('set', KEYS[2], ARGV[1], 'px', ARGV[2])
	return 1
end
if ARGV[2] == '0' then
	redis.call('del', KEYS[1])
else
	redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
end
if KEYS[2] then
	redis.call('del', KEYS[2])
end
return 1`

// The ARGV[3] of putCached that are not a load.
const (
	always     = ""
	ifNotFresh = "+"
)

// lookCached returns how many milliseconds of a fresh value of KEYS[1] are left, and the value. If
// there is none, it returns the age in milliseconds and the text of a failure that is younger than
// ARGV[2] milliseconds. If there is none, or the value lasts for less than ARGV[5] milliseconds, and
// ARGV[3] is not 0, it returns the load as well, for which it stores ARGV[4] for ARGV[3] milliseconds
// unless there is one. ARGV[1] is what putCached has as ARGV[4].
const lookCached = `
local stale = tonumber(ARGV[1])
local left = redis.call('pttl', KEYS[1])
local value = false
if left == -1 or left > stale then
	value = redis.call('get', KEYS[1])
	if left == -1 or left - stale >= tonumber(ARGV[5]) or ARGV[3] == '0' or not KEYS[2] then
		return {'V', left, value}
	end
end
if not KEYS[2] then
	return {'U'}
end
local load = redis.call('get', KEYS[2])
if load and string.sub(load, 1, 1) == 'F' then
	local colon = string.find(load, ':', 1, true)
	local age = tonumber(string.sub(load, 2, colon - 1)) - redis.call('pttl', KEYS[2])
	if age < tonumber(ARGV[2]) and not value then
		return {'F', age, string.sub(load, colon + 1)}
	end
	load = false
end
if ARGV[3] == '0' then
	return {'N'}
end
if load then
	redis.call('pexpire', KEYS[2], ARGV[3])
else
	load = ARGV[4]
	redis.call('set', KEYS[2], load, 'px', ARGV[3])
end
return {'L', left, value, load}`

var putCachedScript, lookCachedScript = redis.NewScript(putCached), redis.NewScript(lookCached)

// keys returns the keys on the server for a key: its value, and its load if it can have one.
func (s *cacheStore) keys(key string) []string {
	if load := bytecache.LoadKey(key, s.single); load != "" {
		return []string{key, load}
	}
	return []string{key}
}

// request returns a request that runs a script for a key.
func (s *cacheStore) request(command, script, key string, args ...any) []any {
	keys := s.keys(key)
	request := []any{command, script, len(keys)}
	for _, k := range keys {
		request = append(request, k)
	}
	return append(request, args...)
}

// put runs putCached. how is always or ifNotFresh.
func (s *cacheStore) put(p *payload, key, how string, d, spare time.Duration) (bool, error) {
	args := []any{p, millis(d), how, millis(spare), 0}
	n, err := s.l.do(p.Sending, s.request("evalsha", putCachedScript.Hash(), key, args...)...)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = s.l.do(p.Sending, s.request("eval", putCached, key, args...)...)
	}
	return n == int64(1), err
}

func (s *cacheStore) Look(ctx context.Context, spare time.Duration, all ...*slots.Slot[[]byte]) error {
	return s.batch(ctx, lookCachedScript, lookCached, all, func(_ int, slot *slots.Slot[[]byte]) []any {
		return []any{millis(spare), millis(slot.Since), millis(slot.Hold), loadText(rand.Uint64() | 1), millis(slot.Ahead)}
	}, func(slot *slots.Slot[[]byte], reply any) error {
		fields, _ := reply.([]any)
		if len(fields) == 0 {
			return errSlotReply
		}
		kind, _ := fields[0].(string)
		switch {
		case kind == "U":
			return bytecache.ErrNoLoad
		case kind == "N":
			return nil
		case kind == "L" && len(fields) == 4:
			load, _ := fields[3].(string)
			var err error
			if len(load) > 1 {
				slot.Version, err = strconv.ParseUint(load[1:], 10, 64)
			}
			if err != nil || slot.Version == 0 {
				return errSlotReply
			}
			if fields[2] == nil {
				return nil
			}
		case len(fields) != 3:
			return errSlotReply
		}
		ms, _ := fields[1].(int64)
		text, ok := fields[2].(string)
		switch {
		case kind != "F" && ok:
			slot.Found, slot.Value, slot.Left = true, []byte(text), -1
			if ms >= 0 {
				slot.Left = time.Duration(ms)*time.Millisecond - spare
			}
		case kind == "F":
			slot.Failed, slot.Failure, slot.Age = true, text, time.Duration(ms)*time.Millisecond
		default:
			return errSlotReply
		}
		return nil
	})
}

var errSlotReply = errors.New("not a reply of the script")

func loadText(version uint64) string { return "L" + strconv.FormatUint(version, 10) }

func (s *cacheStore) Put(ctx context.Context, all ...*slots.Slot[[]byte]) error {
	payloads := make([]*payload, len(all))
	return s.batch(ctx, putCachedScript, putCached, all, func(i int, slot *slots.Slot[[]byte]) []any {
		value, ms, isFailure := slot.Value, max(millis(slot.TTL), 0), 0
		if slot.Failed {
			isFailure = 1
			value = append(append([]byte("F"), strconv.FormatInt(ms, 10)...), ':')
			value = append(value, slot.Failure...)
		}
		if payloads[i] == nil {
			payloads[i] = newPayload(ctx, slot.Key, value)
		}
		return []any{payloads[i], ms, loadText(slot.Version), 0, isFailure}
	}, func(slot *slots.Slot[[]byte], reply any) error {
		slot.Stored = reply == int64(1)
		return nil
	})
}

// batch runs a script for each slot, in one request, and takes the replies.
func (s *cacheStore) batch(ctx context.Context, script *redis.Script, source string, all []*slots.Slot[[]byte],
	args func(i int, slot *slots.Slot[[]byte]) []any,
	take func(slot *slots.Slot[[]byte], reply any) error) error {
	sending := redislock.NewSending(ctx, all[0].Key)
	replies, err := redislock.Call(&s.l.locks.Caller, sending, func() ([]*redis.Cmd, error) {
		command, text := "evalsha", script.Hash()
		replies := make([]*redis.Cmd, len(all))
		for again := range 2 {
			pipe := s.l.client.Pipeline()
			for i, slot := range all {
				if again == 0 || redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
					replies[i] = pipe.Do(sending.Ctx, s.request(command, text, slot.Key, args(i, slot)...)...)
				}
			}
			if _, err := pipe.Exec(sending.Ctx); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
				break
			}
			command, text = "eval", source
		}
		return replies, nil
	})
	if err != nil {
		return err
	}
	for i, slot := range all {
		err := replies[i].Err()
		switch {
		case err == nil:
			slot.Err = take(slot, replies[i].Val())
		case isReply(err):
			slot.Err = err
		default:
			return err
		}
	}
	return nil
}

// isReply reports whether err is what a server replied to a command.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}
