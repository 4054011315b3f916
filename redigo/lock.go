package redigo

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// maxRepeats is how often an operation begins again because the value changed under it. For an
// operation on a lock that is maxRaces: other clients may take it and let it go as fast as they can.
const (
	maxRepeats = 3
	maxRaces   = 15
)

var (
	errChanged   = errors.New("the value of the key kept changing")
	errUnwatched = errors.New("the server executed a transaction although a watched key had changed")
)

// acquire creates the key or, when it is there and expired or token's own, rewrites it.
func (o *operation) acquire(token string, ttl time.Duration) (bool, error) {
	exists := false
	for range 1 + maxRaces {
		if !exists {
			outcome, err := o.create(token, ttl)
			if err != nil || outcome == done || outcome == refused {
				return outcome == done, err
			}
			if outcome == gone {
				continue
			}
			exists = true
		}
		outcome, err := o.rewrite(token, ttl, true)
		if err != nil || outcome == done || outcome == refused {
			return outcome == done, err
		}
		exists = outcome != gone
	}
	return false, errChanged
}

// extend rewrites the key if token holds the lock.
func (o *operation) extend(token string, ttl time.Duration) (bool, error) {
	for range 1 + maxRaces {
		outcome, err := o.rewrite(token, ttl, false)
		if err != nil || outcome != again {
			return outcome == done, err
		}
	}
	return false, errChanged
}

type outcome int

const (
	done    outcome = iota + 1
	refused         // another holds the lock, or token does not
	gone            // there is no value
	again           // the value has to be looked at and written again
)

// create is SETNX with an expiry on the server, in commands that every server knows: it writes the
// value with its expiry under a name that no other call uses, and renames it if the key does not
// exist. If the key exists it is not touched, so it does not disturb the holder's transactions.
func (o *operation) create(token string, ttl time.Duration) (outcome, error) {
	if c := o.l.clock; !c.client && !c.known.Load() {
		if replies, err := o.do(command{"TIME"}); err != nil {
			return 0, err
		} else if _, err = o.time(replies[0]); err != nil {
			return 0, err
		}
	}
	passing := o.l.passing()
	v := value{o.l.clock.expiry(ttl), token}
	results, err := o.multi(o.timed(
		command{"SETEX", passing, garbage(ttl), v.encode()},
		command{"RENAMENX", passing, o.key},
		command{"DEL", passing},
		command{"GET", o.key})...)
	if err != nil || results == nil {
		return again, err
	}
	now, err := o.time(results[len(results)-1])
	if err != nil {
		return 0, err
	}
	created, err := redis.Bool(results[1], nil)
	if err != nil {
		return 0, fmt.Errorf("RENAMENX: %w", err)
	}
	if created {
		if o.l.clock.fits(v.expiry, now, ttl) {
			return done, nil
		}
		return again, nil // it is ours to rewrite
	}
	holder, exists, err := get(results[3])
	switch {
	case err != nil:
		return 0, err
	case !exists:
		return gone, nil
	case holder.ownedBy(token) || holder.expired(now):
		return again, nil
	}
	return refused, nil
}

// rewrite gives the lock to token for ttl from now, if token holds it or, with takeOver, if no
// token does. The server writes only if the value has not changed since it was read. The expiry is
// never short, since it counts from the server's time after the operation began.
func (o *operation) rewrite(token string, ttl time.Duration, takeOver bool) (outcome, error) {
	held, now, exists, err := o.watch()
	switch {
	case err != nil:
		return 0, err
	case !exists && !takeOver:
		return refused, o.unwatch()
	case !exists:
		return gone, o.unwatch()
	case held.expired(now) && !takeOver, !held.expired(now) && !held.ownedBy(token):
		return refused, o.unwatch()
	}
	next := value{expiry(now, ttl), token}.encode()
	write := []command{{"GETSET", o.key, next}}
	if !takeOver && !o.l.clock.client {
		write = o.whileHeld(held, next, ttl)
	}
	results, err := o.multi(append(write, command{"EXPIRE", o.key, garbage(ttl)})...)
	var isOver *refusal
	if errors.As(err, &isOver) && isOver.command == "RENAME" && strings.Contains(string(isOver.cause), "no such key") {
		return refused, nil
	}
	if err != nil || results == nil {
		return again, err
	}
	// To old servers the expiry of a watched key is no change: then there was no value.
	if old, existed, err := get(results[0]); err != nil || existed && old != held {
		return 0, errors.Join(errUnwatched, err)
	}
	return done, nil
}

// whileHeld writes the next value of a lock, unless the present one has expired. It stores the next
// value under another key, makes that key expire when the present value does, and renames it. A
// transaction that arrives late must not bring back a lock that other callers have seen free.
func (o *operation) whileHeld(held value, next string, ttl time.Duration) []command {
	passing := o.l.passing()
	return []command{
		{"GET", o.key},
		{"SETEX", passing, garbage(ttl), next},
		{"PEXPIREAT", passing, held.expiry},
		{"RENAME", passing, o.key},
	}
}

// release deletes the key if its value is token's, and reports whether the lock had not expired.
func (o *operation) release(token string) (bool, error) {
	for range 1 + maxRaces {
		held, now, exists, err := o.watch()
		if err != nil {
			return false, err
		}
		if !exists || !held.ownedBy(token) {
			return false, o.unwatch()
		}
		commands := []command{{"DEL", o.key}}
		if !o.l.mutes.has(o.key) {
			commands = append(commands, command{"PUBLISH", o.key, ""})
		}
		results, err := o.multi(commands...)
		var refused *refusal
		if errors.As(err, &refused) && refused.command == "PUBLISH" && unknown(refused.cause) {
			o.l.mutes.add(o.key) // and nothing was done
			continue
		}
		if err != nil {
			return false, err
		}
		if results == nil || results[0] == int64(0) {
			continue
		}
		return !held.expired(now), nil
	}
	return false, errChanged
}

// unknown reports whether the server does not know a command, or does not allow this user to use
// it.
func unknown(err redis.Error) bool {
	return strings.HasPrefix(string(err), "ERR unknown command") || strings.HasPrefix(string(err), "NOPERM")
}

// watch reads the value and the time. The next transaction fails if the value changes before it.
func (o *operation) watch() (held value, now int64, exists bool, err error) {
	replies, err := o.do(o.timed(command{"WATCH", o.key}, command{"GET", o.key})...)
	if err == nil {
		now, err = o.time(replies[len(replies)-1])
	}
	if err == nil {
		held, exists, err = get(replies[1])
	}
	if err != nil && !o.waiting {
		_ = o.unwatch() // or the connection is lost to the pool
	}
	return held, now, exists, err
}

// unwatch ends what watch began if there is nothing to change. It is a write that does nothing, so
// that a replica refuses it: the replica may not have received the lock yet.
func (o *operation) unwatch() error {
	_, err := o.multi(command{"DEL", o.l.passing()})
	return err
}

// timed appends TIME to commands, unless the time is the client's.
func (o *operation) timed(commands ...command) []command {
	if o.l.clock.client {
		return commands
	}
	return append(commands, command{"TIME"})
}

// time reads the reply to TIME, which the clock learns from. With the client's clock it returns the
// time at which the request was sent, and ignores the reply, which is another command's.
func (o *operation) time(reply any) (now int64, err error) {
	if o.l.clock.client {
		return o.sent, nil
	}
	parts, err := redis.Int64s(reply, nil)
	if err != nil || len(parts) != 2 || parts[0] < 0 || parts[0] > firstMillisecond {
		return 0, fmt.Errorf("TIME: unexpected reply %.64q", fmt.Sprint(reply))
	}
	now = parts[0]*1e6 + parts[1]
	o.l.clock.observe(o.sent, now)
	return now, nil
}

func get(reply any) (v value, exists bool, err error) {
	if reply == nil {
		return value{}, false, nil
	}
	b, err := redis.Bytes(reply, nil)
	if err != nil {
		return value{}, false, fmt.Errorf("GET: %w", err)
	}
	v, err = decode(b)
	return v, err == nil, err
}

const (
	muteFor = time.Minute
	muteMax = 1000 // keys
)

// mutes remembers for a minute the keys on whose channels this user may not publish, so that their
// releases are not all made twice.
type mutes struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (m *mutes) has(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.until[key])
}

func (m *mutes) add(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.until == nil || len(m.until) >= muteMax { // each of the forgotten costs a request
		m.until = make(map[string]time.Time)
	}
	m.until[key] = time.Now().Add(muteFor)
}
