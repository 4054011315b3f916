package postgres

import (
	"context"
	"math"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/inflight"
)

const (
	leaveFor  = 5 * time.Second // waiters try for this long to leave the queue
	leaveRest = 5 * time.Millisecond
	maxGhosts = 4096 // of one Locker
	maxLeave  = 16   // ghosts that leave at the same time
)

// leave takes w out of the queue in the background, and releases the lock if it was granted. It
// outlives ctx. Later calls for the token wait for it.
//
// As long as the token may still be in the queue, it may be granted the lock, in the name of this
// process, which lives. So a ghost stays, and releases what it is granted.
func (w *waiter) leave(ctx context.Context) {
	w.l.ghosts.add(ghost{w.key, w.token})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
	left, leave := context.WithTimeout(ctx, leaveFor)
	_, _ = inflight.Do(left, &w.l.calls, w.token, math.MaxInt64, func() (struct{}, error) {
		defer cancel()
		leave() // the caller goes on
		w.sending.Lock()
		unsure := w.unsure
		w.sending.Unlock()
		for rest := leaveRest; ; rest *= 4 {
			if err := w.l.leave(ctx, w.key, w.token); err == nil {
				if !unsure {
					w.l.ghosts.forget(w.key, w.token)
				}
				break
			}
			if !sleep(ctx, rest) {
				break
			}
		}
		return struct{}{}, nil
	})
}

// leave takes a token out of the queue, and releases the lock if the token holds it.
func (l *Locker) leave(ctx context.Context, key, token string) error {
	for _, sql := range []string{l.sql.leave, l.sql.release} {
		_, err := call(ctx, l, "", func(r *request) (int64, error) { return r.exec(sql, []byte(key), []byte(token)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// ghost is a token that may be in a queue although its waiter has gone.
type ghost struct{ key, token string }

// ghosts are those of a Locker, by name. They are about entries in the
// name of the connection that listens. When that ends, their entries are passed over.
type ghosts struct {
	l       *Locker
	number  atomic.Int64
	mu      sync.Mutex
	m       map[string]ghost
	leaving []string // names
	workers int
}

func (g *ghosts) add(who ghost) {
	name := nameOf(who.key, who.token)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = make(map[string]ghost)
	}
	if len(g.m) >= maxGhosts {
		for other := range g.m {
			delete(g.m, other)
			break
		}
	}
	g.m[name] = who
	g.number.Store(int64(len(g.m)))
}

// forget is for a token that has left, or that its owner uses again.
func (g *ghosts) forget(key, token string) {
	if g.number.Load() == 0 {
		return
	}
	name := nameOf(key, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.m, name); len(g.m) == 0 {
		g.m = nil // also frees what a peak has left
	}
	g.number.Store(int64(len(g.m)))
}

// granted releases a lock that a ghost was granted.
func (g *ghosts) granted(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.m[name]; ok {
		g.leaveLocked(name)
	}
}

// leaveAll makes all ghosts leave, since messages to them may have been lost.
func (g *ghosts) leaveAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.m {
		g.leaveLocked(name)
	}
}

func (g *ghosts) leaveLocked(name string) {
	g.leaving = append(g.leaving, name)
	if g.workers < maxLeave {
		g.workers++
		go g.work()
	}
}

func (g *ghosts) work() {
	pprof.SetGoroutineLabels(context.Background()) // it is not the work of the caller
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.leaving) > 0 {
		name := g.leaving[0]
		g.leaving = g.leaving[1:]
		who, ok := g.m[name]
		if !ok {
			continue
		}
		// It is still a ghost here, so later calls of its owner wait for this.
		over := make(chan struct{})
		g.l.calls.Go(who.token, func() {
			defer close(over)
			ctx, cancel := context.WithTimeout(context.Background(), leaveFor)
			defer cancel()
			for rest := leaveRest; g.l.leave(ctx, who.key, who.token) != nil && sleep(ctx, rest); rest *= 4 {
			}
		})
		g.mu.Unlock()
		<-over
		g.mu.Lock()
	}
	g.workers--
	g.leaving = nil
}
