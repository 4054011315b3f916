package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker/internal/permits"
)

// maxPermits is how many permits may share a queue. A script looks at each of them. The scores of
// their marks in the queue must also remain below 0.5, where those of unclaimed permits begin.
const maxPermits = 64

// errSlots means that a client for a single server is connected to a node of a Cluster.
var errSlots = fmt.Errorf("the permits are in different slots of a Cluster: %w", errors.ErrUnsupported)

// Permits returns the permits of a semaphore, which are the locks name/1 to name/n. It returns nil
// if they cannot share a queue: there are too many of them, or they may be on different servers.
func (l *Locks) Permits(name string, n int) permits.Permits {
	if !l.names.single || n > maxPermits || l.slots.Load() {
		return nil
	}
	return &permitsOf{l, l.names.permits(name, n)}
}

// permitsQueue returns the key of the queue for all permits of a semaphore. It is not the queue of
// any lock, since the scope of a lock's queue has no @.
func (n *Namespace) permitsQueue(name string) string {
	return n.mark + "queue:" + n.scope + "@permits{" + n.prefix + name + "}"
}

// queueIfPermit returns the queue for all permits of a semaphore to which the lock named key may
// belong, or "".
func (l *Locks) queueIfPermit(key string) string {
	slash := strings.LastIndexByte(key, '/')
	if slash < 1 || !l.names.single || l.slots.Load() {
		return ""
	}
	number := key[slash+1:]
	if n, err := strconv.Atoi(number); err != nil || n < 1 || n > maxPermits || strconv.Itoa(n) != number {
		return ""
	}
	return l.names.permitsQueue(key[:slash])
}

// permits returns the keys of the permits and of their queue.
func (n *Namespace) permits(name string, count int) Keys {
	queue := n.permitsQueue(name)
	p := &permitKeys{queue: queue, locks: make([]string, count)}
	var b strings.Builder
	b.Grow(count * (len(n.prefix) + len(name) + len("/64")))
	for i := range p.locks {
		start := b.Len()
		b.WriteString(n.prefix)
		b.WriteString(name)
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(i + 1))
		p.locks[i] = b.String()[start:]
	}
	return Keys{Queue: queue, permits: p}
}

// permitsOf implements [permits.Permits].
type permitsOf struct {
	l    *Locks
	keys Keys
}

// Acquire takes a permit in one attempt.
func (p *permitsOf) Acquire(ctx context.Context, token string, ttl time.Duration) (permit int, err error) {
	s := NewSending(ctx, token)
	permit, err = Call(&p.l.Caller, s, func() (int, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return 0, err
		}
		for range 3 {
			n, err := p.l.takePermit(s, p.keys.permits, ms)
			switch {
			case err != nil || n > 0:
				return n, err
			case n == 0:
				return 0, s.Refused(p.l.timeout, min(ttl, p.l.timeout))
			}
			// token holds a permit already. Until that ends, a late copy of the request has no
			// effect.
			permit, err := p.extend(s, ms)
			if err != nil || permit > 0 {
				return permit, err
			}
			// It expired just now: try again.
		}
		return 0, errChanging
	})
	return permit, s.noCleanup(err)
}

// takePermit takes a permit if one is free and no one waits, and returns its number. If the token
// held a permit before, it returns the number of that permit, negated. Otherwise it returns 0.
func (l *Locks) takePermit(s *Sending, p *permitKeys, ms int64) (n int, err error) {
	reply, err := l.evalForPermits(PermitsLook, p, s, ms)
	s.came(err)
	if err != nil {
		return 0, err
	}
	return p.number(reply)
}

// number reads a reply that is the number of a permit, perhaps negated, or 0.
func (p *permitKeys) number(reply any) (int, error) {
	n, ok := reply.(int64)
	if !ok || max(n, -n) > int64(len(p.locks)) {
		return 0, fmt.Errorf("the server's reply is not the number of a permit: %v", reply)
	}
	return int(n), nil
}

// Wait takes a permit if one is free, and otherwise joins the queue.
func (p *permitsOf) Wait(ctx context.Context, token string, ttl time.Duration) (int, time.Time, error) {
	return p.l.waitFor(ctx, p.keys, token, ttl)
}

// Extend replaces the remaining time of the permit that token holds.
func (p *permitsOf) Extend(ctx context.Context, token string, ttl time.Duration) (permit int, err error) {
	s := NewSending(ctx, token)
	return CallInOrder(&p.l.Caller, s, func() (int, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return 0, err
		}
		return p.extend(s, ms)
	})
}

func (p *permitsOf) extend(s *Sending, ms int64) (permit int, err error) {
	before := s.Sends()
	reply, err := p.l.evalForPermits(PermitsExtend, p.keys.permits, s, ms)
	if err != nil {
		return 0, err
	}
	if permit, err = p.keys.permits.number(reply); permit > 0 {
		_, err = sentOnce(s, before, err)
	}
	if err != nil {
		permit = 0
	}
	return permit, err
}

// Release frees the permit that token holds. If the request was repeated, it reports true, as
// [Locks.Release] does.
func (p *permitsOf) Release(ctx context.Context, token string) (bool, error) {
	s := NewSending(ctx, token)
	return CallInOrder(&p.l.Caller, s, func() (bool, error) {
		freed, err := p.l.release(p.keys, s)
		return err == nil && (freed.Released || s.Sends() > 1), err
	})
}

// evalForPermits runs a script for permits.
func (l *Locks) evalForPermits(script Script, p *permitKeys, s *Sending, ms int64, more ...string) (any, error) {
	reply, err := l.send(s, Eval{Script: script, Key1: p.queue, Keys: p.locks, TTL: ms, More: more})
	if err != nil && l.requests.IsReply(err, "CROSSSLOT") {
		l.slots.Store(true)
		return nil, errSlots
	}
	return reply, err
}
