package redislock

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

const (
	giveUpFor  = 5 * time.Second      // how long giving up a place is tried
	giveUpRest = 5 * time.Millisecond // the rest after the first try, four times as long each time
	giveUpMost = 2 * time.Second      // up to this
	maxUnsure  = 256                  // how many may try more than once at a time
	ghostLife  = time.Minute          // how long a request without an answer is expected to arrive yet
	maxSweeps  = 256                  // how many keys a Locker looks after that it has released
)

// GiveUp releases a lock that last may have taken, or may yet take, in the background.
func (ws *Waiters) GiveUp(ctx context.Context, keys Keys, last *Sending) {
	if ws.Err == nil && !last.isUnsent() {
		ws.giveUp(ctx, keys, last, nil, false)
	}
}

// giveUp takes w's entry out of the queue in the background, and releases the lock if it was
// granted. One request does that for sure when all requests for them have been answered; otherwise
// one may be under way that takes the lock, or puts the entry in the queue, later, also after an
// earlier one was found there. It outlives ctx. Without w it is about the lock alone.
//
// An entry that may have stayed in the queue may be handed the lock: so from the beginning the
// inbox minds its ghost, and releases the lock at once. The inbox forgets it when the entry
// certainly is gone.
func (ws *Waiters) giveUp(ctx context.Context, keys Keys, last *Sending, w *waiting, unsure bool) {
	var entries [2]string
	var g *ghost
	if w != nil {
		entries = [2]string{w.entry.String(0), w.entry.String(w.claim)}
		g = &ghost{keys: keys, entries: entries, nonce: w.entry.Nonce, token: last.Token, ttl: w.ttl}
		ws.inbox.haunt(w, g)
	}
	go func() {
		defer ws.givingUp.Add(-1)
		mayRepeat := ws.givingUp.Add(1) <= maxUnsure
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpFor)
		defer cancel()
		for rest := giveUpRest; ; rest = min(4*rest, giveUpMost) {
			s := &Sending{Ctx: ctx, Token: last.Token}
			freed, err := CallInOrder(&ws.Caller, s, func() (Freed, error) {
				if w == nil {
					return ws.Release(keys, s)
				}
				return ws.Release(keys, s, entries[0], entries[1])
			})
			// In order, that is after the last request has come back: only now may it be asked.
			if g != nil && last.isOver() && !unsure {
				g.isOver.Store(true)
			}
			if err == nil && (freed.Released && w == nil || g != nil && g.isOver.Load()) {
				if g != nil {
					ws.inbox.bury(g)
				}
				return
			}
			if !mayRepeat || !sleep(ctx, rest) {
				if err != nil && g != nil {
					ws.leaveLater(g)
				}
				return
			}
		}
	}()
}

// served minds the entry of a waiter that has the lock, if a request without an answer may yet put
// it in the queue again: whatever is granted to it then is released at once.
func (ws *Waiters) served(w *waiting, last *Sending) {
	if !w.unsure && last.answered {
		return
	}
	g := &ghost{keys: w.keys, entries: [2]string{w.entry.String(0), w.entry.String(w.claim)},
		nonce: w.entry.Nonce, id: w.id, token: last.Token, ttl: w.ttl, isServed: true, ticket: w.ticket}
	if ws.inbox.hauntServed(g) {
		time.AfterFunc(ghostLife, func() { ws.inbox.bury(g) })
	}
}

// Release runs the script of that name, and sees to it that the queue goes on.
func (ws *Waiters) Release(keys Keys, s *Sending, args ...any) (Freed, error) {
	reply, err := ws.run(Release, keys, s, args...)
	if err != nil {
		return Freed{}, err
	}
	freed, err := ParseFreed(reply)
	if err == nil && freed.SweepIn >= 0 {
		ws.sweepLater(keys, freed.SweepIn)
	}
	return freed, err
}

// sweeps are the keys whose queues a Locker looks after once more, having released their locks:
// there was more to drop than one script may, or nobody but it may be there to see that the next
// one does not claim the lock.
type sweeps struct {
	mu      sync.Mutex
	pending map[string]struct{}
}

func (ws *Waiters) sweepLater(keys Keys, after time.Duration) {
	p := &ws.sweeps
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.pending[keys.Lock]; ok || len(p.pending) >= maxSweeps {
		return
	}
	if p.pending == nil {
		p.pending = make(map[string]struct{})
	}
	p.pending[keys.Lock] = struct{}{}
	time.AfterFunc(after, func() {
		p.mu.Lock()
		delete(p.pending, keys.Lock)
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), giveUpFor)
		defer cancel()
		reply, err := ws.run(Sweep, keys, &Sending{Ctx: ctx, Token: rand.Text()})
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
