package redislock

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

const (
	giveUpFor  = 5 * time.Second      // waiters try for this long, after their last request, to give up their place
	giveUpRest = 5 * time.Millisecond // delay after the first try; it quadruples
	giveUpMost = 2 * time.Second      // up to this
	maxUnsure  = 256                  // waiters that may try more than once at the same time
	ghostLife  = time.Minute          // a request without an answer may still arrive for this long
	maxSweeps  = 256                  // keys whose queues a Locker may have to serve again
)

// giveUp takes w's entry out of the queue in the background, and releases the lock if w has it.
// hasFailed means that the last request had no answer, as far as is known.
//
// An entry that may still be in the queue may be granted the lock. So the inbox keeps a ghost of it
// until the entry has certainly left the queue, and releases whatever the ghost is granted.
func (ws *Waiters) giveUp(ctx context.Context, last *Sending, w *waiting, hasFailed bool) {
	mayTake := w.unsure || hasFailed
	g := &ghost{
		keys: w.keys, entries: w.entries(), nonce: w.entry.Nonce, token: last.Token, ttl: w.ttl, joined: w.joined,
		mayTake: mayTake,
	}
	ws.inbox.haunt(w, g)
	ws.undo(ctx, last, g, w.unsure, mayTake)
}

// undo undoes in the background what the requests of a ghost's waiter have done, or may yet do. It
// outlives ctx. One request is enough if all of them have been answered: last, and the earlier
// ones unless they are unsure. Otherwise one of them may still arrive, and take the lock or put the
// entry in the queue again. Then the leavers go on until the server has answered for giveUpFor. They
// also do if it does not answer.
func (ws *Waiters) undo(ctx context.Context, last *Sending, g *ghost, unsure, mayTake bool) {
	mayRepeat := ws.givingUp.Add(1) <= maxUnsure
	go func() {
		defer ws.givingUp.Add(-1)
		// While the server hangs, the last request may stay under way, and take the lock later.
		ended, stop := context.WithTimeout(context.WithoutCancel(ctx), ghostLife)
		_ = ws.calls.Wait(ended, last.Token)
		stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpFor)
		defer cancel()
		var answered time.Time // the first time
		for rest := giveUpRest; ; rest = min(4*rest, giveUpMost) {
			s := &Sending{Ctx: ctx, Token: last.Token}
			freed, err := CallInOrder(&ws.Caller, s, func() (Freed, error) {
				return ws.release(g.keys, s, g.arguments(true)...)
			})
			if err == nil && answered.IsZero() {
				answered = time.Now()
			}
			// CallInOrder has waited for the last request, so it may be read now.
			switch {
			case err != nil:
			case !g.hasEntry() && freed.Released && last.Sends() <= 1: // nothing else may arrive
				return
			case g.hasEntry() && last.isOver() && !unsure:
				g.isOver.Store(true)
				ws.inbox.hasLeft(g, freed)
				return
			}
			if mayRepeat && sleep(ctx, rest) {
				continue
			}
			if err == nil && g.hasEntry() {
				ws.inbox.hasLeft(g, freed)
			}
			if err == nil && mayTake { // a request may still arrive: the last release was too early
				ws.leavers.answersSince(g, answered)
			}
			if err != nil || mayTake {
				ws.leaveLater(g)
			}
			return
		}
	}()
}

// served keeps a ghost of the entry of a waiter that has the lock, if a request without an answer
// may still put the entry in the queue again.
func (ws *Waiters) served(w *waiting, last *Sending) {
	if !w.unsure && last.answered {
		return
	}
	g := &ghost{keys: w.keys, entries: w.entries(), nonce: w.entry.Nonce,
		id: w.id, token: last.Token, ttl: w.ttl, isServed: true, ticket: w.ticket}
	if ws.inbox.hauntServed(g) {
		time.AfterFunc(ghostLife, func() { ws.inbox.bury(g) })
	}
}

// release runs the script of that name, and makes sure that the queue moves on.
func (ws *Waiters) release(keys Keys, s *Sending, more ...string) (Freed, error) {
	reply, err := ws.run(keys.of(Release, PermitsRelease), keys, s, 0, more...)
	if err != nil {
		return Freed{}, err
	}
	freed, err := ParseFreed(reply)
	if err == nil && freed.SweepIn >= 0 {
		ws.sweepLater(keys, freed.SweepIn)
	}
	return freed, err
}

// sweeps are the queues that a Locker serves once more after a release: the script may not
// have dropped all dead waiters, or the next waiter may not claim the lock, and no other process
// may be there to notice.
type sweeps struct {
	mu      sync.Mutex
	pending map[string]struct{}
}

func (ws *Waiters) sweepLater(keys Keys, after time.Duration) {
	p := &ws.sweeps
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.pending[keys.Queue]; ok || len(p.pending) >= maxSweeps {
		return
	}
	if p.pending == nil {
		p.pending = make(map[string]struct{})
	}
	p.pending[keys.Queue] = struct{}{}
	time.AfterFunc(after, func() {
		p.mu.Lock()
		delete(p.pending, keys.Queue)
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), giveUpFor)
		defer cancel()
		reply, err := ws.run(keys.of(Sweep, PermitsSweep), keys, &Sending{Ctx: ctx, Token: rand.Text()}, 0)
		if err != nil {
			return
		}
		if freed, err := ParseFreed(reply); err == nil && freed.SweepIn >= 0 {
			ws.sweepLater(keys, freed.SweepIn)
		}
	})
}

// sleep reports whether d has passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
