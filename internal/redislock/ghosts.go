package redislock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/pubsub"
)

const (
	maxGhosts = 4096 // of one Locker
	maxLeave  = 16   // ghosts that leave at the same time
)

// ghost is an entry that may be in a queue although its waiter has gone. If the lock is granted to
// it, only this process can release it before it expires. A waiter that had no entry yet leaves a
// ghost without one, which only the leavers know.
type ghost struct {
	box     *box
	keys    Keys
	entries [2]string // empty: it has none
	nonce   string
	id      string // set by haunt
	token   string // encoded
	ttl     time.Duration

	joined  bool        // the entry certainly was in the queue
	dying   atomic.Bool // it is buried soon
	isOver  atomic.Bool // no request is under way that could put the entry in the queue again
	leaving atomic.Bool // it is about to leave

	// Guarded by the leavers' lock:
	since time.Time     // when it first tried to leave; zero: it does not
	rest  time.Duration // after the next failure

	// mayTake means that a request without an answer may take the lock directly. That leaves no
	// mark with the nonce, so the lock is released by its token alone, until the server has
	// answered for a while.
	mayTake  bool
	answered time.Time // when the server first answered after that request

	isServed bool   // its waiter has the lock, or had it,
	ticket   string // by this ticket, or by none
}

// hasEntry reports whether g is a ghost of an entry.
func (g *ghost) hasEntry() bool { return g.nonce != "" }

// arguments returns the arguments of a [Release] by g. With byToken, the lock is released if the
// token holds it, in whatever way it got it, and otherwise only if it was served to the entry.
func (g *ghost) arguments(byToken bool) []string {
	switch {
	case !g.hasEntry():
		return nil
	case byToken:
		return g.entries[:]
	}
	return append(g.entries[:], g.nonce)
}

// isMeant reports whether a message is for an entry that joined the queue after its waiter had
// gone. The grant that served the waiter must not release its lock, even if it arrives late or
// twice.
func (g *ghost) isMeant(m Message) bool {
	return !g.isServed || len(m.Ticket) > len(g.ticket) || len(m.Ticket) == len(g.ticket) && m.Ticket > g.ticket
}

// haunt adds a ghost of an entry whose waiter is leaving. If there are too many, one is forgotten.
// Its channel is abandoned then, so that the scripts pass over the forgotten entry: waiters move to
// another one with their next look, that is within [LookAgain]. They are not asked to look, since
// the connections may be exhausted.
func (i *inbox) haunt(w *waiting, g *ghost) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.ghosts) >= maxGhosts {
		i.forgetLocked()
	}
	if i.ghosts == nil {
		i.ghosts = make(map[string]*ghost)
	}
	g.id, g.box = w.id, w.box
	delete(i.waiting, g.id)
	i.ghosts[g.id] = g
	select {
	case <-w.mail: // it arrived just before the waiter went
		i.haunted(g)
	default:
	}
}

// forgetLocked forgets one ghost, of a channel that is abandoned already if there is one.
func (i *inbox) forgetLocked() {
	var last *ghost
	for _, g := range i.ghosts {
		if last = g; g.box == nil || g.box.isAbandoned.Load() {
			break
		}
	}
	delete(i.ghosts, last.id)
	if b := last.box; b != nil && !b.isAbandoned.Swap(true) {
		i.retireLocked(b)
	}
}

// hauntServed adds a ghost of the entry of a waiter that was served, unless there are too many.
func (i *inbox) hauntServed(g *ghost) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.ghosts) >= maxGhosts {
		return false
	}
	if i.ghosts == nil {
		i.ghosts = make(map[string]*ghost)
	}
	delete(i.waiting, g.id)
	i.ghosts[g.id] = g
	return true
}

// ghostsMissed makes the ghosts of a channel leave if messages may have been lost. Otherwise a lock
// that was granted to one of them would be held until it expires.
func (i *inbox) ghostsMissed(b *box) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, g := range i.ghosts {
		if g.box == b && !g.isServed {
			i.haunted(g)
		}
	}
}

// bury forgets a ghost: its entry certainly is in no queue.
func (i *inbox) bury(g *ghost) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ghosts[g.id] == g {
		delete(i.ghosts, g.id)
	}
}

// hasLeft buries a ghost that was answered a release: at once if its entry was there and nothing can put it
// there again. Otherwise a late request may, or another server than the queue's has answered, as on a
// Ring of which a shard is down for a while.
func (i *inbox) hasLeft(g *ghost, freed Freed) {
	if g.isOver.Load() && (freed.Left || freed.Released || !g.joined) {
		i.bury(g)
	} else if !g.dying.Swap(true) {
		time.AfterFunc(ghostLife, func() { i.bury(g) })
	}
}

// leavers take ghosts out of their queues, a few at a time, in the background. There is a goroutine
// only while there is something to do.
type leavers struct {
	mu      sync.Mutex
	ghosts  []*ghost
	trying  int // how many ghosts try to leave, including those that rest between attempts
	workers int
}

// leaveLater releases the lock if a ghost has it, and takes its entry out of the queue if it is
// there. No one else does, so while the server does not answer, this is tried until the lock's ttl
// has passed, and for at least [ghostLife]. If too many try already, the lock ends with its ttl.
func (ws *Waiters) leaveLater(g *ghost) {
	p := &ws.leavers
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.since.IsZero() && p.trying >= maxGhosts || g.leaving.Swap(true) {
		return
	}
	if g.since.IsZero() {
		g.since, g.rest = time.Now(), giveUpRest
		p.trying++
	}
	p.ghosts = append(p.ghosts, g)
	if p.workers < maxLeave {
		p.workers++
		go ws.leave()
	}
}

// answersSince records that the server has answered a ghost since then.
func (p *leavers) answersSince(g *ghost, then time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.answered.IsZero() {
		g.answered = then
	}
}

func (ws *Waiters) leave() {
	p := &ws.leavers
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ghosts) > 0 {
		g := p.ghosts[0]
		p.ghosts = p.ghosts[1:]
		byToken := g.mayTake
		p.mu.Unlock()
		err := ws.leaveNow(g, byToken)
		p.mu.Lock()
		switch {
		case g.since.IsZero(): // another worker was quicker
		case p.isOver(g, err):
			p.trying--
			g.since = time.Time{}
		default:
			time.AfterFunc(g.rest, func() { ws.leaveLater(g) })
			g.rest = min(4*g.rest, giveUpMost)
		}
	}
	p.workers--
	p.ghosts = nil
}

// isOver reports whether g need not try again to leave. It needs the lock of p.
func (p *leavers) isOver(g *ghost, err error) bool {
	switch {
	case err != nil:
		return errors.Is(err, pubsub.ErrClosed) || time.Since(g.since) > max(g.ttl, ghostLife)
	case !g.mayTake:
		return true
	case g.answered.IsZero():
		g.answered = time.Now()
	}
	g.mayTake = time.Since(g.answered) < giveUpFor
	return !g.mayTake
}

func (ws *Waiters) leaveNow(g *ghost, byToken bool) error {
	g.leaving.Store(false) // another message may come from here on
	ctx, cancel := context.WithTimeout(context.Background(), giveUpFor)
	defer cancel()
	s := &Sending{Ctx: ctx, Token: g.token}
	freed, err := Call(&ws.Caller, s, func() (Freed, error) {
		return ws.release(g.keys, s, g.arguments(byToken)...)
	})
	if err == nil && g.hasEntry() {
		ws.inbox.hasLeft(g, freed)
	}
	return err
}
