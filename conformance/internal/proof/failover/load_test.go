//go:build linux

package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof/belief"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	granters  = 2 // take a new lock again and again, and keep it
	keepers   = 6 // keep locks alive, two of them contend for each
	takers    = 6 // take turns with a few locks
	takerKeys = 3

	grantTTL  = time.Hour
	keeperTTL = 3 * time.Second
	timeout   = time.Second     // of a request
	patience  = 5 * time.Minute // Sentinel may need two to turn a master into a replica
)

// load is clients that use the locks of a system, and what they have seen.
type load struct {
	t      *testing.T
	sys    *system
	cancel context.CancelFunc
	all    sync.WaitGroup

	progress []*atomic.Int64 // by client: what went well
	failures atomic.Int64
	fences   atomic.Int64
	back     atomic.Int64 // fencing numbers that were not greater than an earlier one
	last     [takerKeys]atomic.Uint64

	mu      sync.Mutex
	grants  []grant
	beliefs []*belief.Interval
	pause   time.Duration // the longest of a granter without a grant
}

// grant is a lock that was acquired, and that its holder neither extends nor releases.
type grant struct{ key, token string }

// run starts the clients, each with connections of its own.
func run(t *testing.T, sys *system) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, sys: sys, cancel: cancel}
	client := func(do func(ctx context.Context, l locker.Locker, done *atomic.Int64)) {
		lk, done := sys.open(t), new(atomic.Int64)
		l.progress = append(l.progress, done)
		l.all.Go(func() { do(ctx, lk, done) })
	}
	for i := range granters {
		client(func(ctx context.Context, lk locker.Locker, done *atomic.Int64) { l.grant(ctx, lk, done, i) })
	}
	for i := range takers {
		client(func(ctx context.Context, lk locker.Locker, done *atomic.Int64) { l.take(ctx, lk, done, i) })
	}
	// These make progress only when a lock is lost.
	n := len(l.progress)
	for i := range keepers {
		client(func(ctx context.Context, lk locker.Locker, _ *atomic.Int64) { l.keep(ctx, lk, i) })
	}
	l.progress = l.progress[:n]
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.cancel()
	l.all.Wait()
}

// goesOn waits until each client has got a few more locks.
func (l *load) goesOn() {
	l.t.Helper()
	for i, done := range l.progress {
		before := done.Load()
		require.Eventually(l.t, func() bool { return done.Load() >= before+10 }, patience, time.Millisecond,
			"client %d gets no lock", i)
	}
}

// behind lets locks be taken for some time that a replica does not learn of.
func (l *load) behind() {
	l.t.Helper()
	time.Sleep(lag)
	done := l.progress[0] // a granter
	before := done.Load()
	require.Eventually(l.t, func() bool { return done.Load() > before }, patience, time.Millisecond, "no lock is taken")
}

func (l *load) failed(ctx context.Context) {
	if ctx.Err() == nil {
		l.failures.Add(1)
	}
	time.Sleep(rand.N(20 * time.Millisecond))
}

// grant takes one new lock after the other and keeps all of them.
func (l *load) grant(ctx context.Context, lk locker.Locker, done *atomic.Int64, id int) {
	last := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		g := grant{l.sys.key(fmt.Sprintf("grant/%d/%d", id, n)), fmt.Sprint("granter ", id)}
		short, cancel := context.WithTimeout(ctx, timeout)
		ok, err := lk.Acquire(short, g.key, g.token, grantTTL)
		cancel()
		if err != nil {
			l.failed(ctx)
			continue
		}
		assert.True(l.t, ok, "a lock that no other client uses is refused")
		l.mu.Lock()
		l.grants = append(l.grants, g)
		l.pause = max(l.pause, time.Since(last))
		l.mu.Unlock()
		last = time.Now()
		done.Add(1)
		time.Sleep(time.Millisecond)
	}
}

// believe records a belief. Its end is guarded by mu.
func (l *load) believe(key, holder int, lease *locker.Lease) *belief.Interval {
	b := &belief.Interval{
		Key: uint32(key), Holder: uint32(holder), From: belief.Clock(), Until: belief.At(lease.Deadline()),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beliefs = append(l.beliefs, b)
	return b
}

func (l *load) until(b *belief.Interval, t time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.Until = t
}

// take takes turns with a few locks, and mints fencing numbers.
func (l *load) take(ctx context.Context, lk locker.Locker, done *atomic.Int64, id int) {
	for n := id; ctx.Err() == nil; n++ {
		k := n % takerKeys
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		lease, err := locker.Lock(short, lk, l.sys.key(fmt.Sprint("turn/", k)), keeperTTL)
		cancel()
		if err != nil {
			l.failed(ctx)
			continue
		}
		b := l.believe(k, id, lease)
		least := l.last[k].Load()
		short, cancel = context.WithTimeout(ctx, timeout)
		if fence, err := lease.Fence(short); err == nil {
			l.fences.Add(1)
			if fence <= least {
				l.back.Add(1)
			}
			for old := l.last[k].Load(); fence > old && !l.last[k].CompareAndSwap(old, fence); old = l.last[k].Load() {
			}
		}
		cancel()
		time.Sleep(rand.N(3 * time.Millisecond))
		l.until(b, min(belief.Clock(), belief.At(lease.Deadline())))
		if lease.Unlock(ctx) != nil {
			l.failed(ctx)
			continue
		}
		done.Add(1)
	}
}

// keep takes a lock and keeps it alive until it is lost.
func (l *load) keep(ctx context.Context, lk locker.Locker, id int) {
	k := id / 2
	for ctx.Err() == nil {
		lease, err := locker.Lock(ctx, lk, l.sys.key(fmt.Sprint("kept/", k)), keeperTTL, locker.WithKeepAlive())
		if err != nil {
			l.failed(ctx)
			continue
		}
		b := l.believe(takerKeys+k, id, lease)
		for ctx.Err() == nil && lease.Err() == nil {
			l.until(b, belief.At(lease.Deadline()))
			time.Sleep(time.Millisecond)
		}
		if now := belief.Clock(); now < belief.At(lease.Deadline()) {
			l.until(b, now) // refused, or the end
		}
		_ = lease.Unlock(context.WithoutCancel(ctx))
	}
}

// forgotten returns how many of the locks that are held another token can acquire.
func (l *load) forgotten() int {
	l.t.Helper()
	var n atomic.Int64
	var all sync.WaitGroup
	lk := l.sys.open(l.t)
	const checkers = 16
	for i := range checkers {
		all.Go(func() {
			for _, g := range l.grants[i*len(l.grants)/checkers : (i+1)*len(l.grants)/checkers] {
				for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
					ok, err := lk.Acquire(context.Background(), g.key, "another", time.Minute)
					if ok && err == nil {
						n.Add(1)
					}
					if err == nil || time.Now().After(end) {
						assert.NoError(l.t, err)
						break
					}
				}
			}
		})
	}
	all.Wait()
	return int(n.Load())
}

// overlaps returns how often two clients believed at the same time that they had a lock, and for how
// long at most.
func (l *load) overlaps() (n int, longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var beliefs []belief.Interval
	for _, b := range l.beliefs {
		beliefs = append(beliefs, *b)
	}
	all := belief.Overlaps(beliefs)
	for _, o := range all {
		longest = max(longest, o.For())
	}
	return len(all), longest
}
