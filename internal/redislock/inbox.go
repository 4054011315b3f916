package redislock

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/pubsub"
)

const (
	boxLinger = 10 * time.Second // a channel is listened to this long after its last waiter
)

// inbox receives the messages about the turns of a Locker's waiters, on a channel of its own that
// all of them share. Only this file deals with subscriptions. Waiters also work without a channel:
// see [Pace].
//
// The inbox also limits the looks that no message asked for to a few at a time at each server,
// however many waiters there are, so that they do not compete for the client's connections.
type inbox struct {
	Source
	names   *Namespace
	haunted func(*ghost) // a message came for a ghost; must not block
	busy    atomic.Bool  // there are waiters, or were a moment ago

	mu      sync.Mutex
	current *box                // for new waiters
	waiting map[string]*waiting // by the entry's ID
	ghosts  map[string]*ghost   // by the entry's ID
	lanes   map[any]*lane       // by server: see looks.go
	peers   map[string]*peers   // by queue: see peers.go
}

// Source is where a Locker receives messages from.
type Source struct {
	Hubs     func(ctx context.Context) ([]*pubsub.Hub, error) // of the servers to listen to
	Changes  bool                                             // Hubs may return others the next time
	ServerOf func(lock string) any                            // identifies the server of a lock; nil: there is one
	MaxLooks int                                              // under way at one server; see [LooksOf]
	Linger   time.Duration                                    // of a channel after its last waiter; 0: ten seconds
}

func (s *Source) serverOf(lock string) any {
	if s.ServerOf == nil {
		return nil
	}
	return s.ServerOf(lock)
}

// box is one channel. It is given up when its last waiter has been gone for a while, or at once
// when it is retired.
type box struct {
	inbox *inbox
	name  string
	hubs  []*pubsub.Hub
	subs  pubsub.Set // one for each hub
	epoch atomic.Int64

	isAbandoned atomic.Bool // its waiters move to another one before they look

	// Guarded by the inbox's lock:
	waiters int
	idle    *time.Timer
}

// enter subscribes w to messages about its turns.
func (i *inbox) enter(ctx context.Context, w *waiting) {
	i.attach(ctx, w)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.joinLocked(w)
}

// looks announces a look of w. It attaches w to another box if its own is abandoned.
func (i *inbox) looks(ctx context.Context, w *waiting) {
	i.mu.Lock()
	w.isLooking = true
	i.mu.Unlock()
	old := w.box
	if !old.isAbandoned.Load() {
		return
	}
	i.attach(ctx, w)
	w.unheard = 0
	i.mu.Lock()
	defer i.mu.Unlock()
	old.waiters--
	old.closeLocked()
}

// attach makes w use the current box.
func (i *inbox) attach(ctx context.Context, w *waiting) {
	var hubs []*pubsub.Hub
	if i.Changes {
		hubs, _ = i.Hubs(ctx) // none: then w cannot hear
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.waiting == nil {
		i.waiting = make(map[string]*waiting)
	}
	b := i.current
	if b != nil && i.Changes && !sameHubs(b.hubs, hubs) {
		i.retireLocked(b)
		b = nil
	}
	if b == nil {
		if !i.Changes {
			hubs, _ = i.Hubs(ctx)
		}
		b = i.newBoxLocked(hubs)
	}
	b.waiters++
	if b.idle != nil {
		b.idle.Stop()
		b.idle = nil
	}
	w.box, w.entry.Channel = b, b.name
	i.waiting[w.id] = w
}

// newBoxLocked subscribes to a new channel. Its waiters look once it is live, since they may have
// missed messages until then.
func (i *inbox) newBoxLocked(hubs []*pubsub.Hub) *box {
	b := &box{inbox: i, name: i.names.NewChannel(), hubs: hubs}
	for _, h := range hubs {
		b.subs = append(b.subs, h.Join(b.name, b))
	}
	i.current = b
	i.busy.Store(true)
	go func() {
		for _, sub := range b.subs {
			<-sub.Done() // also when the box is given up
		}
		b.Missed()
	}()
	return b
}

// sameHubs reports whether a and b, without duplicates, are the same in any order.
func sameHubs(a, b []*pubsub.Hub) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(h *pubsub.Hub) bool { return !slices.Contains(b, h) })
}

// leave ends what enter began.
func (i *inbox) leave(w *waiting) {
	linger := boxLinger
	if i.Linger > 0 {
		linger = min(linger, i.Linger)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.waiting, w.id)
	w.gone = true
	i.lookedLocked(w)
	i.partLocked(w)
	if i.current == nil && len(i.peers) == 0 {
		i.busy.Store(false)
	}
	b := w.box
	b.waiters--
	if b.waiters == 0 && b == i.current {
		b.idle = time.AfterFunc(linger, b.giveUp)
	}
	b.closeLocked()
}

// giveUp retires a box that is idle.
func (b *box) giveUp() {
	i := b.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	if b.waiters > 0 || b != i.current {
		return
	}
	i.retireLocked(b)
	if len(i.waiting) == 0 { // there is no channel on which a message for a ghost could come
		i.waiting, i.ghosts = nil, nil
	}
}

// retireLocked makes later waiters use another channel. When its last waiter has left, messages
// for this one's ghosts no longer arrive, and the scripts pass them over.
func (i *inbox) retireLocked(b *box) {
	if i.current == b {
		i.current = nil
		i.busy.Store(len(i.peers) > 0)
		b.closeLocked()
	}
}

// closeLocked closes a box that has no waiter and gets no more. Its channel must not seem to have a
// subscriber. Its ghosts get no message any more.
func (b *box) closeLocked() {
	i := b.inbox
	if b.waiters > 0 || b == i.current {
		return
	}
	for _, sub := range b.subs {
		sub.Drop()
	}
	maps.DeleteFunc(i.ghosts, func(_ string, g *ghost) bool { return g.box == b })
}

// hears reports whether the box is subscribed to on all its servers. The epoch changes with the
// connections, and is not 0.
func (b *box) hears() (live bool, epoch int) {
	epoch = int(b.epoch.Load()) + 1
	for _, sub := range b.subs {
		if sub.Err() != nil {
			return false, epoch
		}
	}
	return len(b.subs) > 0, epoch
}

// Message handles a message on the channel.
func (b *box) Message(payload string) {
	m, ok := ParseMessage(payload)
	if !ok {
		return
	}
	i := b.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	if w, ok := i.waiting[m.ID]; ok {
		if !m.IsForged(w.entry.Nonce) { // a forged one must not replace a true one
			w.told(m)
		}
	} else if g, ok := i.ghosts[m.ID]; ok && m.Kind != Dropped && g.isMeant(m) {
		i.haunted(g)
	}
}

// Missed makes all waiters look, and all ghosts leave: any of them may have been granted its lock.
func (b *box) Missed() {
	b.epoch.Add(1)
	b.askAll()
	b.inbox.ghostsMissed(b)
}

// askAll makes b's waiters look, in the order in which they joined.
func (b *box) askAll() {
	i := b.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []*waiting
	for _, w := range i.waiting {
		if w.box == b {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *waiting) int { return int(a.number) - int(b.number) })
	for _, w := range all {
		i.missedLocked(w)
	}
}
