package redislock

import (
	"container/list"
	"time"
)

// peers are the waiters of one Locker for one lock. The foremost of them looks after the end of the
// holder's time, in case the holder and all waiters before it have gone together, as when their
// process dies. It does so no more than once a second, and not while it is the first in the queue,
// which looks by its [Pace] anyway. The others do so only when it has left. One of them looks at
// least every [LookAgain], since the server has to hear from the process.
//
// The inbox's lock guards all of it.
type peers struct {
	waiters list.List // of *waiting, in the order in which they came
	timer   *time.Timer
	due     time.Time // of the timer; zero: it is not set
	asked   time.Time // when one was asked to look last
	looked  time.Time // when one has looked last

	// The last look that found its place lost:
	mistrusted time.Time   // a moment before it
	found      time.Time   // when it found that
	alarmed    time.Time   // when the others were asked to look because of it
	alarm      *time.Timer // asks them again; nil: it is not set
}

const (
	peersRest = time.Second          // between two looks for the same peers
	alarmRest = 5 * time.Millisecond // between two alarms, for each of the peers; at most LookAgain
)

// joinLocked adds w to its peers.
func (i *inbox) joinLocked(w *waiting) {
	p := i.peers[w.keys.Queue]
	if p == nil {
		p = new(peers)
		if i.peers == nil {
			i.peers = make(map[string]*peers)
		}
		i.peers[w.keys.Queue] = p
	}
	w.place = p.waiters.PushBack(w)
}

// partLocked removes w from its peers. The next of them does not know the holder's remaining time.
// If it is the first in the queue, a message tells it.
func (i *inbox) partLocked(w *waiting) {
	p := i.peers[w.keys.Queue]
	wasForemost := p.waiters.Front() == w.place
	p.waiters.Remove(w.place)
	switch {
	case p.waiters.Len() == 0:
		if p.timer != nil {
			p.timer.Stop()
		}
		if p.alarm != nil {
			p.alarm.Stop()
		}
		delete(i.peers, w.keys.Queue)
	case wasForemost && p.due.IsZero():
		i.lookAtLocked(p, time.Now().Add(peersRest))
	}
}

// placed records w's place in the queue after a look, which was sent after asked, and reports whether
// w is the foremost of its peers.
func (i *inbox) placed(w *waiting, asked time.Time, left time.Duration, rank int64) (isForemost bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.asked = asked
	i.peers[w.keys.Queue].looked = time.Now()
	return i.placedLocked(w, left, rank)
}

// leads records that w is the first in the queue.
func (i *inbox) leads(w *waiting, left time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.placedLocked(w, left, 0)
}

func (i *inbox) placedLocked(w *waiting, left time.Duration, rank int64) (isForemost bool) {
	w.isFirst = rank == 0
	p := i.peers[w.keys.Queue]
	if p.waiters.Front() != w.place {
		return false
	}
	i.lookAtLocked(p, time.Now().Add(After(left, rank)))
	return true
}

// lookAtLocked sets the time at which the foremost looks.
func (i *inbox) lookAtLocked(p *peers, at time.Time) {
	if latest := p.looked.Add(LookAgain); at.After(latest) {
		at = latest // a queue that moves would defer it forever
	}
	if soonest := p.asked.Add(peersRest); at.Before(soonest) {
		at = soonest
	}
	p.due = at
	if p.timer == nil {
		p.timer = time.AfterFunc(time.Until(at), func() { i.lookDue(p) })
	} else {
		p.timer.Reset(time.Until(at))
	}
}

func (i *inbox) lookDue(p *peers) {
	i.mu.Lock()
	defer i.mu.Unlock()
	foremost := p.waiters.Front()
	if foremost == nil || p.due.IsZero() || time.Now().Before(p.due) {
		return // the timer was reset or stopped too late
	}
	p.due = time.Time{}
	if w := foremost.Value.(*waiting); !w.isFirst || time.Since(p.looked) >= LookAgain {
		p.asked = time.Now()
		i.askLocked(w, true)
	}
}

// mistrust makes w's peers look after one of its looks, sent after asked, found that it had lost its
// place, since they may have lost theirs. If places are lost again and again, the peers look no more
// often than a few hundred times a second together, or each of them every [LookAgain].
func (i *inbox) mistrust(w *waiting, asked time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.peers[w.keys.Queue]
	if w.asked.Before(p.mistrusted) { // it has not looked since, so this is the same loss
		return
	}
	p.mistrusted, p.found = asked, time.Now()
	if p.alarm != nil {
		return
	}
	rest := min(time.Duration(p.waiters.Len())*alarmRest, LookAgain)
	if rest -= time.Since(p.alarmed); rest <= 0 {
		i.alarmLocked(p, w)
		return
	}
	p.alarm = time.AfterFunc(rest, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		p.alarm = nil
		i.alarmLocked(p, nil)
	})
}

// alarmLocked makes all peers look that have not looked since the last loss was found, except the one
// that has just found it.
func (i *inbox) alarmLocked(p *peers, finder *waiting) {
	p.alarmed = time.Now()
	for e := p.waiters.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiting); w != finder && w.asked.Before(p.found) {
			i.missedLocked(w)
		}
	}
}
