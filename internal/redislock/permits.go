package redislock

// The permits of a semaphore are locks that share a queue.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker/internal/permits"
)

// maxPermits is how many permits may share a queue. A script looks at each of them.
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
	return n.mark + "line:" + n.scope + "@permits{" + n.prefix + name + "}"
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
	locks := make([]string, count)
	var b strings.Builder
	b.Grow(count * (len(n.prefix) + len(name) + len("/64")))
	for i := range locks {
		start := b.Len()
		b.WriteString(n.prefix)
		b.WriteString(name)
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(i + 1))
		locks[i] = b.String()[start:]
	}
	return Keys{Queue: n.permitsQueue(name), permits: locks, name: name}
}

// permitsOf implements [permits.Permits].
type permitsOf struct {
	l    *Locks
	keys Keys
}

// Acquire takes a permit in one attempt.
func (p *permitsOf) Acquire(ctx context.Context, token string, ttl time.Duration) (permit int, err error) {
	s := NewSending(ctx, token)
	if err := p.l.doubts.stop(ctx, p.keys, s.Token); err != nil {
		return 0, err
	}
	permit, err = Call(&p.l.Caller, s, func() (int, error) {
		ms, err := milliseconds(ttl)
		if err != nil {
			return 0, err
		}
		r, err := p.l.look(s, p.keys, ms)
		if err == nil && r.number > 0 {
			_, err = sentOnce(s, 0, nil)
		} else if err == nil {
			err = s.Refused(p.l.timeout, min(ttl, p.l.timeout))
		}
		if err != nil {
			return 0, err
		}
		return max(r.number, 0), nil
	})
	return permit, s.noCleanup(err)
}

// Wait takes a permit if one is free, and otherwise joins the queue.
func (p *permitsOf) Wait(ctx context.Context, token string, ttl time.Duration) (int, time.Time, error) {
	return p.l.waitFor(ctx, p.keys, token, ttl)
}

// Extend replaces the remaining time of the permit that token holds.
func (p *permitsOf) Extend(ctx context.Context, token string, ttl time.Duration) (permit int, err error) {
	return p.l.extendOne(ctx, p.keys, token, ttl)
}

// Release frees the permit that token holds. If the request was repeated, it reports true, as
// [Locks.Release] does.
func (p *permitsOf) Release(ctx context.Context, token string) (bool, error) {
	return p.l.releaseOne(ctx, p.keys, token)
}
