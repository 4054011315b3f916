package redislock

import (
	"container/list"
)

const (
	minLooks = 4 // looks that may be under way at a server, however small the pool is
	urgently = 3 // of four looks are by the first in their queues, if others want to look as well
)

// lane holds the looks at one server that no message asked for. Their number is limited, so that
// they leave some of the pool's connections to other requests. Every server has a lane of its own,
// since a server that does not answer holds up its lane.
type lane struct {
	server any
	looks  int // under way
	turns  int
	urgent list.List // of *waiting, in the order in which they asked
	others list.List
}

// LooksOf returns how many looks may be under way with a pool of connections to one server.
func LooksOf(poolSize, maxActive int) int {
	if maxActive > 0 {
		poolSize = min(poolSize, maxActive)
	}
	return max(poolSize/2, minLooks)
}

// ask makes w look when its turn in the lane comes. A waiter that is, or may be, the first in its
// queue goes before others. A waiter asks again when it has become the first, or when its lock has
// moved to another server.
func (i *inbox) ask(w *waiting) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.askLocked(w, w.isFirst)
}

func (i *inbox) askLocked(w *waiting, isUrgent bool) {
	if w.gone || w.mayLook || w.isLooking {
		return
	}
	server := i.serverOf(w.keys.Lock)
	if w.asks != nil {
		if w.lane.server == server && (w.isUrgent || !isUrgent) {
			return
		}
		isUrgent = isUrgent || w.isUrgent
		i.withdrawLocked(w)
	}
	c := i.lanes[server]
	if c == nil {
		c = &lane{server: server}
		if i.lanes == nil {
			i.lanes = make(map[any]*lane)
		}
		i.lanes[server] = c
	}
	w.lane, w.isUrgent = c, isUrgent
	if isUrgent {
		w.asks = c.urgent.PushBack(w)
	} else {
		w.asks = c.others.PushBack(w)
	}
	i.permitLocked(c)
}

// missedLocked makes w look, since it may have lost its place or missed a message. A look that is
// under way may have been answered before that.
func (i *inbox) missedLocked(w *waiting) {
	w.again = w.again || w.isLooking
	i.askLocked(w, false)
}

// withdrawLocked takes w out of its lane.
func (i *inbox) withdrawLocked(w *waiting) {
	if w.asks == nil {
		return
	}
	if w.isUrgent {
		w.lane.urgent.Remove(w.asks)
	} else {
		w.lane.others.Remove(w.asks)
	}
	w.asks = nil
	i.permitLocked(w.lane)
}

func (i *inbox) permitLocked(c *lane) {
	for c.looks < max(i.MaxLooks, minLooks) && c.urgent.Len()+c.others.Len() > 0 {
		from := &c.urgent
		if c.urgent.Len() == 0 || c.others.Len() > 0 && c.turns%(urgently+1) == urgently {
			from = &c.others
		}
		w := from.Remove(from.Front()).(*waiting)
		c.turns++
		c.looks++
		w.asks, w.mayLook = nil, true
		w.turn <- struct{}{} // it has room: mayLook was false
	}
	if c.looks == 0 {
		delete(i.lanes, c.server)
	}
}

// looked reports that w has looked, whether it was its turn or not.
func (i *inbox) looked(w *waiting) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.isLooking = false
	i.lookedLocked(w)
	if w.again {
		w.again = false
		i.askLocked(w, false)
	}
}

func (i *inbox) lookedLocked(w *waiting) {
	i.withdrawLocked(w)
	if w.mayLook {
		w.mayLook = false
		select {
		case <-w.turn:
		default:
		}
		w.lane.looks--
		i.permitLocked(w.lane)
	}
}
