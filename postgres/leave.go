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

	leaveAgain = time.Second // a ghost that goes on tries again after this
	lateFor    = time.Minute // a request without an answer may still arrive for this long
	maxLate    = 16          // such requests of one waiter that are remembered
)

// leave takes w out of the queue in the background, and releases the lock if it was granted. It
// outlives ctx. Later calls for the token wait for it.
//
// As long as the token may still be in the queue, it may be granted the lock, in the name of this
// process, which lives. So a ghost stays, and releases what it is granted. If a request without an
// answer may yet take the lock, or the server does not answer now, the ghost also goes on trying.
func (w *waiter) leave(ctx context.Context) {
	who := &ghost{key: w.key, token: w.token, since: time.Now(), ttl: time.Duration(w.ttl.Microseconds) * time.Microsecond}
	w.l.ghosts.add(who)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
	left, leave := context.WithTimeout(ctx, leaveFor)
	_, _ = inflight.Do(left, &w.l.calls, w.token, math.MaxInt64, func() (struct{}, error) {
		defer cancel()
		leave() // the caller goes on
		w.sending.Lock()
		unsure, isSent := w.unsure, w.sent
		w.sending.Unlock()
		if !isSent {
			w.l.ghosts.forget(w.key, w.token)
			return struct{}{}, nil
		}
		for rest := leaveRest; ; rest *= 4 {
			err := w.l.leave(ctx, w.key, w.token)
			switch {
			case err == nil && !unsure, isClosed(err):
				w.l.ghosts.forget(w.key, w.token)
				return struct{}{}, nil
			case err == nil || !sleep(ctx, rest):
				w.l.ghosts.goOn(who, err == nil)
				return struct{}{}, nil
			}
		}
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

// leaveServed releases the lock if it was handed to the token's place with that nonce.
func (l *Locker) leaveServed(ctx context.Context, key, token, nonce string) error {
	_, err := call(ctx, l, "", func(r *request) (int64, error) {
		return r.exec(l.sql.releaseServed, []byte(key), []byte(token), nonce)
	})
	return err
}

// ghost is a token that may be in a queue although its waiter has gone.
type ghost struct {
	key, token string

	// nonce is that of a place in the queue, if the waiter was served and a late request may put it
	// there again. The token may hold the lock, so only what is handed to that place is released.
	nonce string

	// Guarded by the ghosts' lock:
	since    time.Time // when its waiter left
	ttl      time.Duration
	answered time.Time // when the server first answered after its waiter left
	rests    bool      // after a pause, it tries again or is forgotten
	leaves   bool      // it is among those that are about to leave
}

// ghosts holds the ghosts of a Locker, by name, or by nonce if they have one. Their entries in
// queues are in the name of the connection that listens, and are passed over when it ends.
type ghosts struct {
	l       *Locker
	number  atomic.Int64
	mu      sync.Mutex
	m       map[string]*ghost
	leaving []string // names
	workers int
}

func (g *ghosts) add(who *ghost) { g.addAs(nameOf(who.key, who.token), who) }

// addLate adds a ghost of the place with that nonce, for as long as a request may be late.
func (g *ghosts) addLate(nonce string, who *ghost) {
	g.addAs(nonce, who)
	time.AfterFunc(lateFor, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.removeLocked(nonce)
	})
}

func (g *ghosts) addAs(name string, who *ghost) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = make(map[string]*ghost)
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

func (g *ghosts) removeLocked(name string) {
	if delete(g.m, name); len(g.m) == 0 {
		g.m = nil // also frees what a peak has left
	}
	g.number.Store(int64(len(g.m)))
}

// goOn makes a ghost go on trying to leave, until the server has answered for a while, or has been
// silent for so long that it is unlikely to execute the request. A ghost that was answered is
// forgotten when no request can arrive any more.
func (g *ghosts) goOn(who *ghost, isAnswered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.goOnLocked(who, isAnswered)
}

func (g *ghosts) goOnLocked(who *ghost, isAnswered bool) {
	name := nameOf(who.key, who.token)
	if isAnswered && who.answered.IsZero() {
		who.answered = time.Now()
	}
	isOver := isAnswered && (who.since.IsZero() || time.Since(who.answered) > leaveFor)
	switch {
	case who.nonce != "" || g.m[name] != who || who.rests:
		return
	case who.since.IsZero() && !isOver, !isAnswered && time.Since(who.since) > max(who.ttl, lateFor):
		who.since = time.Time{}
		return
	}
	rest := leaveAgain
	if isOver { // a late request may still put the token in the queue, of which a message tells
		who.since, rest = time.Time{}, lateFor
	}
	who.rests = true
	time.AfterFunc(rest, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		who.rests = false
		switch {
		case g.m[name] != who:
		case isOver:
			g.removeLocked(name)
		default:
			g.leaveLocked(name)
		}
	})
}

// forget is for a token that has left, or that its owner uses again.
func (g *ghosts) forget(key, token string) {
	if g.number.Load() == 0 {
		return
	}
	name := nameOf(key, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removeLocked(name)
}

// granted releases a lock that a ghost was granted, and reports whether there is a ghost of that name
// or nonce.
func (g *ghosts) granted(name string) bool {
	if g.number.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.m[name]
	if ok {
		g.leaveLocked(name)
	}
	return ok
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
	who := g.m[name]
	if who.leaves {
		return
	}
	who.leaves = true
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
		who.leaves = false // another message may come from here on
		// It is still a ghost here, so later calls of its owner wait for this.
		over := make(chan bool, 1)
		g.l.calls.Go(who.token, func() { over <- g.leave(who) })
		g.mu.Unlock()
		isAnswered := <-over
		g.mu.Lock()
		g.goOnLocked(who, isAnswered)
	}
	g.workers--
	g.leaving = nil
}

// leave lets a ghost leave the queue, and reports whether the server has answered.
func (g *ghosts) leave(who *ghost) bool {
	ctx, cancel := context.WithTimeout(context.Background(), leaveFor)
	defer cancel()
	for rest := leaveRest; ; rest *= 4 {
		var err error
		if who.nonce != "" {
			err = g.l.leaveServed(ctx, who.key, who.token, who.nonce)
		} else {
			err = g.l.leave(ctx, who.key, who.token)
		}
		if isClosed(err) {
			g.forget(who.key, who.token)
		}
		if err == nil || isClosed(err) || !sleep(ctx, rest) {
			return err == nil
		}
	}
}
