package redislock

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/internal/pubsub"
)

// The owner of a lock that may linger listens on the channel that the mark in the lock's token
// names. A process that is refused by such a token sends "want <channel> <name> <lock>" there, and
// gets "free <name>" or "used <name>" on a channel of its own. Other users of the server can send
// such messages as well. A lock may then be given up too early, or an attempt be refused although
// the lock is not in use.

const (
	askRest    = 10 * time.Second // a Locker listens for answers this long after its last demand
	maxAnswers = 256              // answers being sent at a time; further ones are not sent
	silence    = 5 * time.Second  // an owner that did not answer is not asked again for this long
	maxSilent  = 64               // owners that are remembered because they did not answer

	answerTrips = 16                  // round trips to wait for an answer, if that is longer than Patience
	mostPatient = 5 * demand.Patience // the limit of that
)

// station listens to a channel until Close.
type station struct {
	id      string
	subs    pubsub.Set
	live    atomic.Bool
	heard   func(payload string)
	missed  func()
	settled chan struct{} // closed when the first attempt to subscribe has ended

	mu     sync.Mutex // also makes live the result of the latest check
	closed bool
}

func (locks *Locks) newStation(hubs []*pubsub.Hub, heard func(payload string), missed func()) *station {
	s := &station{id: rand.Text(), heard: heard, missed: missed, settled: make(chan struct{})}
	for _, h := range hubs {
		s.subs = append(s.subs, h.Join(locks.names.channel(s.id), s))
	}
	go func() {
		for _, sub := range s.subs {
			<-sub.Done()
		}
		s.update()
		close(s.settled)
	}()
	return s
}

func (s *station) update() {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := !s.closed
	for _, sub := range s.subs {
		live = live && sub.Err() == nil
	}
	s.live.Store(live)
}

// Message implements [pubsub.Listener].
func (s *station) Message(payload string) { s.heard(payload) }

// Missed implements [pubsub.Listener].
func (s *station) Missed() {
	s.update()
	s.missed()
}

// Close unsubscribes at once, so that the server counts no listener.
func (s *station) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.live.Store(false)
	for _, sub := range s.subs {
		sub.Drop()
	}
}

// listener reports demands to an owner.
type listener struct {
	*station
	locks *Locks
	owner demand.Owner
}

// Listen implements [demand.Demander]. A Locker on a Ring, whose servers come and go, does not
// report demands.
func (locks *Locks) Listen(o demand.Owner) demand.Listener {
	if locks.Err != nil || locks.Changes {
		return nil
	}
	hubs, err := locks.Hubs(context.Background())
	if err != nil || len(hubs) == 0 {
		return nil
	}
	l := &listener{locks: locks, owner: o}
	l.station = locks.newStation(hubs, l.demanded, o.Missed)
	return l
}

// Live implements [demand.Listener].
func (l *listener) Live() bool { return l.live.Load() }

// Mark implements [demand.Listener].
func (l *listener) Mark(key string) string {
	if !l.Live() || l.locks.names.Keys(key).Queue == "" {
		return ""
	}
	return l.id
}

// demanded handles a message to the owner of locks.
func (l *listener) demanded(payload string) {
	fields := strings.SplitN(payload, " ", 4)
	if len(fields) != 4 || fields[0] != "want" {
		return
	}
	key, ok := strings.CutPrefix(fields[3], l.locks.names.prefix)
	if !ok || key == "" {
		return
	}
	if fields[1] == "-" {
		l.owner.Wanted(key, nil)
		return
	}
	l.owner.Wanted(key, func(isFree bool) {
		message := "used " + fields[2]
		if isFree {
			message = "free " + fields[2]
		}
		l.locks.answer(key, fields[1], message)
	})
}

// answer sends an answer in the background.
func (locks *Locks) answer(key, channel, message string) {
	if locks.answering.Add(1) > maxAnswers {
		locks.answering.Add(-1)
		return
	}
	go func() {
		defer locks.answering.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), demand.Patience)
		defer cancel()
		names := locks.names
		s := &Sending{Ctx: ctx, Token: rand.Text()}
		_, _ = Call(&locks.Caller, s, func() (any, error) {
			return locks.run(Answer, names.Keys(key), s, 0, names.channel(channel), message)
		})
	}()
}

// asker asks the owners of locks, and listens for their answers while it is in use.
type asker struct {
	mu      sync.Mutex
	station *station
	used    time.Time
	last    uint64
	waiting map[string]chan bool // by the name of the demand
	silent  map[string]time.Time // when owners that did not answer may be asked again, by mark
	late    map[string]string    // the marks of these owners, by the name of the demand
}

// Ask asks the owner of a lock that has refused an attempt to give the lock up if it is not in use.
// It waits for the answer for a bounded time, and reports whether the lock may be free now. An
// answer may have been lost, so without an answer Ask reports true. For some time after that it
// reports false without asking. mark is the mark of the lock's token, or "" if it is not known. The
// error is ctx's.
func (locks *Locks) Ask(ctx context.Context, keys Keys, mark string) (isFree bool, err error) {
	if mark == "" {
		mark = "of " + keys.Lock
	}
	if locks.Err != nil || keys.Queue == "" || locks.asker.isSilent(mark) {
		return false, nil
	}
	isFree = locks.ask(ctx, keys, mark)
	return isFree && ctx.Err() == nil, ctx.Err()
}

func (locks *Locks) ask(ctx context.Context, keys Keys, mark string) (isFree bool) {
	a := &locks.asker
	st := a.open(ctx, locks)
	if st == nil || !st.isLive(ctx) {
		return false
	}
	asking, cancel := context.WithTimeout(ctx, mostPatient)
	defer cancel()
	name, answer := a.expect()
	defer a.forget(name)
	s := &Sending{Ctx: asking, Token: rand.Text()}
	told, err := Call(&locks.Caller, s, func() (any, error) {
		return locks.run(Demand, keys, s, 0, st.id+" "+name)
	})
	switch {
	case err != nil:
		return false
	case told == int64(-1):
		return true
	case told == int64(0) && locks.counted: // the owner is gone
		return false
	}
	// If the machine is overloaded, the owner may be as slow as this process.
	rtt := max(time.Duration(locks.roundTrip.ns.Load()), time.Since(s.first))
	timer := time.NewTimer(min(max(demand.Patience, answerTrips*rtt), mostPatient))
	defer timer.Stop()
	select {
	case isFree = <-answer:
	case <-ctx.Done():
	case <-timer.C:
		a.noteSilent(name, mark)
		return true
	}
	return isFree
}

// isLive reports whether s is subscribed to its channel. It waits for the first attempt to
// subscribe, for a bounded time.
func (s *station) isLive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, demand.Patience)
	defer cancel()
	select {
	case <-s.settled:
	case <-ctx.Done():
	}
	return s.live.Load()
}

func (a *asker) isSilent(mark string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	again, ok := a.silent[mark]
	if ok && time.Now().After(again) {
		delete(a.silent, mark)
		ok = false
	}
	return ok
}

func (a *asker) noteSilent(name, mark string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.silent == nil || len(a.silent) >= maxSilent || len(a.late) >= maxSilent {
		a.silent, a.late = make(map[string]time.Time), make(map[string]string)
	}
	a.silent[mark] = time.Now().Add(silence)
	a.late[name] = mark
}

func (a *asker) open(ctx context.Context, locks *Locks) *station {
	hubs, err := locks.Hubs(ctx)
	if err != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = time.Now()
	if a.station != nil && locks.Changes && !a.station.isOn(hubs) {
		a.closeLocked()
	}
	if a.station == nil {
		a.station = locks.newStation(hubs, a.answered, a.missed)
		a.restLater(a.station, askRest)
	}
	return a.station
}

// isOn reports whether s listens on these hubs.
func (s *station) isOn(hubs []*pubsub.Hub) bool {
	return len(s.subs) == len(hubs) && !slices.ContainsFunc(s.subs, func(sub *pubsub.Subscription) bool {
		return !slices.Contains(hubs, sub.Hub())
	})
}

func (a *asker) restLater(s *station, after time.Duration) {
	time.AfterFunc(after, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.station != s {
			return
		}
		if left := time.Until(a.used.Add(askRest)); left > 0 {
			a.restLater(s, left)
		} else {
			a.closeLocked()
		}
	})
}

func (a *asker) closeLocked() {
	a.station.Close()
	a.station = nil
}

// expect returns the name of a new demand, and the channel for its answer.
func (a *asker) expect() (name string, answer chan bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	name, answer = strconv.FormatUint(a.last, 36), make(chan bool, 1)
	if a.waiting == nil {
		a.waiting = make(map[string]chan bool)
	}
	a.waiting[name] = answer
	return name, answer
}

func (a *asker) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.waiting, name); len(a.waiting) == 0 {
		a.waiting = nil
	}
}

func (a *asker) answered(payload string) {
	word, name, _ := strings.Cut(payload, " ")
	a.mu.Lock()
	defer a.mu.Unlock()
	if mark, ok := a.late[name]; ok { // the owner is slow, not gone
		delete(a.silent, mark)
		delete(a.late, name)
	}
	a.tellLocked(name, word == "free")
}

// missed ends all demands. Their answers may have been lost, so their locks may be free.
func (a *asker) missed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.waiting {
		a.tellLocked(name, true)
	}
}

func (a *asker) tellLocked(name string, isFree bool) {
	select {
	case a.waiting[name] <- isFree: // a nil channel is never ready
	default: // it has an answer
	}
}
