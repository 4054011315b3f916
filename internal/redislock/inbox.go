package redislock

// The channel of a Locker's waiters, and what it brings.

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/pubsub"
)

// boxLinger is how long a channel is listened to after its last waiter.
const boxLinger = 10 * time.Second

// inbox has the channel on which a Locker is told about its entries in queues, while there are any
// and a while longer. Waiters also work without a channel.
type inbox struct {
	locks *Locks
	busy  atomic.Bool // there is a box, so there may be a queue

	mu      sync.Mutex
	box     *box
	waiters int
	idle    *time.Timer
	places  map[string]*place // by entry
	number  uint64            // of entries so far
}

// box is one channel.
type box struct {
	inbox *inbox
	name  string
	subs  pubsub.Set // one for each server
	tried bool       // it is known whether the server's user may publish
	mute  bool       // it may not, so there are no messages
}

// enter announces a waiter. The first one subscribes.
func (i *inbox) enter(ctx context.Context) {
	hubs, isNew := i.hubs(ctx, false)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiters++
	if i.idle != nil {
		i.idle.Stop()
		i.idle = nil
	}
	if i.box == nil {
		if !isNew {
			i.mu.Unlock()
			hubs, _ = i.hubs(ctx, true)
			i.mu.Lock()
		}
		if i.box == nil {
			i.box = &box{inbox: i, name: i.locks.names.NewChannel()}
			i.places = make(map[string]*place)
			i.busy.Store(true)
			isNew = true
		}
	}
	if isNew {
		i.box.listenLocked(hubs)
	}
}

// hubs returns the servers to listen to, if there is no box or they may have changed.
func (i *inbox) hubs(ctx context.Context, must bool) (hubs []*pubsub.Hub, ok bool) {
	if i.locks.Hubs == nil || !must && !i.locks.Changes && i.busy.Load() {
		return nil, false
	}
	hubs, _ = i.locks.Hubs(ctx) // none: then waiters cannot hear
	return hubs, true
}

// listenLocked subscribes to the channel on these servers alone. When that is live, waiters look,
// since they may have missed messages until then.
func (b *box) listenLocked(hubs []*pubsub.Hub) {
	var added pubsub.Set
	for _, h := range hubs {
		if !slices.ContainsFunc(b.subs, func(s *pubsub.Subscription) bool { return s.Hub() == h }) {
			added = append(added, h.Join(b.name, b))
		}
	}
	b.subs = slices.DeleteFunc(b.subs, func(s *pubsub.Subscription) bool {
		isGone := !slices.Contains(hubs, s.Hub())
		if isGone {
			s.Drop()
		}
		return isGone
	})
	b.subs = append(b.subs, added...)
	if len(added) > 0 {
		go func() {
			for _, s := range added {
				<-s.Done() // also when it is dropped
			}
			b.Missed()
		}()
	}
}

// leave ends what enter began.
func (i *inbox) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.waiters--; i.waiters > 0 {
		return
	}
	linger := boxLinger
	if i.locks.Linger > 0 {
		linger = min(linger, i.locks.Linger)
	}
	var idle *time.Timer
	idle = time.AfterFunc(linger, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.idle != idle {
			return
		}
		for _, s := range i.box.subs { // at once: it must not seem to have a listener
			s.Drop()
		}
		i.box, i.idle, i.places = nil, nil, nil
		i.busy.Store(false)
	})
	i.idle = idle
}

// hears reports whether messages arrive, and "1" if it has to be tried whether they are permitted.
func (i *inbox) hears(ctx context.Context) (ok bool, try string) {
	if i.locks.Changes {
		if hubs, ok := i.hubs(ctx, true); ok {
			i.mu.Lock()
			i.box.listenLocked(hubs)
			i.mu.Unlock()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	b := i.box
	if !b.tried {
		try = "1"
	}
	return len(b.subs) > 0 && !b.mute &&
		!slices.ContainsFunc(b.subs, func(s *pubsub.Subscription) bool { return s.Err() != nil }), try
}

func (i *inbox) tried(mayPublish bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.box.mute = i.box.mute && i.box.tried || !mayPublish
	i.box.tried = true
}

// newEntry returns a new entry for a queue, whose messages go to p.
func (i *inbox) newEntry(p *place, keys Keys) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.number++
	entry := i.box.name + " " + i.locks.names.entryID(i.number, keys)
	i.places[entry] = p
	return entry
}

// forget makes messages for an entry be passed on, and the one that p has not read as well.
func (i *inbox) forget(p *place, entry string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.places, entry)
	if p.offered == entry {
		p.offered = ""
		i.locks.pass(entry)
	}
}

// news returns what has come since the last call.
func (i *inbox) news(p *place) (isOffered bool, at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	isOffered, at = p.offered != "", p.lookAt
	p.offered, p.lookAt = "", time.Time{}
	return isOffered, at
}

// Message handles a message on the channel: an offer, or the time after which to look.
func (b *box) Message(payload string) {
	id, what, ok := strings.Cut(payload, " ")
	if !ok {
		return
	}
	entry, i := b.name+" "+id, b.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.places[entry]
	ms, err := strconv.ParseInt(what, 10, 64)
	switch {
	case what == "offer" && p == nil:
		i.locks.pass(entry)
	case what == "offer":
		if p.offered != "" && p.offered != entry {
			i.locks.pass(p.offered)
		}
		p.offered = entry
		signal(p.wake)
	case err == nil && p != nil:
		p.tellLocked(remaining(max(ms, 0)) + late)
	}
}

func (p *place) tellLocked(in time.Duration) {
	if at := time.Now().Add(in); p.lookAt.IsZero() || at.Before(p.lookAt) {
		p.lookAt = at
		signal(p.wake)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Missed makes all lines look, a few hundred a second.
func (b *box) Missed() {
	i := b.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.box != b {
		return
	}
	for _, p := range i.places {
		p.tellLocked(rand.N(deafEach * time.Duration(len(i.places))))
	}
}

// looking limits the looks that no offer asked for to a few at a time at each server, so that they
// leave some of the pool's connections to other requests. A server that does not answer holds up its
// own alone.
type looking struct {
	most  int
	mu    sync.Mutex
	lanes map[any]*lane
}

type lane struct {
	turns chan struct{}
	users int
}

const minLooks = 4 // however small the pool is

// LooksOf returns how many looks may be under way with a pool of connections to one server.
func LooksOf(poolSize, maxActive int) int {
	if maxActive > 0 {
		poolSize = min(poolSize, maxActive)
	}
	return max(poolSize/2, minLooks)
}

// enter waits for a turn, and reports false if ctx ends first.
func (k *looking) enter(ctx context.Context, server any) bool {
	k.mu.Lock()
	c := k.lanes[server]
	if c == nil {
		c = &lane{turns: make(chan struct{}, k.most)}
		if k.lanes == nil {
			k.lanes = make(map[any]*lane)
		}
		k.lanes[server] = c
	}
	c.users++
	k.mu.Unlock()
	select {
	case c.turns <- struct{}{}:
		return true
	case <-ctx.Done():
		k.left(server, c)
		return false
	}
}

// leave ends a turn.
func (k *looking) leave(server any) {
	k.mu.Lock()
	c := k.lanes[server]
	k.mu.Unlock()
	<-c.turns
	k.left(server, c)
}

func (k *looking) left(server any, c *lane) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(k.lanes, server)
	}
}
