package redisv9

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/redis/go-redis/v9"
)

const (
	lineTTL    = time.Minute            // the line's expiry, renewed by whoever looks at it,
	lookAgain  = 10 * time.Second       // which each waiter does this often at least
	rankRest   = 10 * time.Millisecond  // those behind the first in line look this much later each
	guessMin   = 100 * time.Millisecond // and no more often than this, while somebody holds the lock
	rankMax    = 50                     // up to so many
	margin     = 2 * time.Millisecond   // a grant's deadline is early by the rounding of two times
	lateMax    = 3                      // how many grants may come too late before one is returned as it is
	giveUpFor  = 5 * time.Second        // how long giving up a place is tried
	giveUpRest = 5 * time.Millisecond   // the rest after the first try, four times as long each time
	giveUpMost = 2 * time.Second        // up to this
	maxUnsure  = 256                    // how many may try more than once at a time
)

// Wait takes the lock as Acquire does when it is free, and otherwise joins the line in Redis and returns when
// it was handed the lock. First come, first served, across processes; a waiter whose process is gone is
// passed over, on a Cluster it costs the others its ttl. A lock whose holder vanished goes to the first in
// line a few milliseconds after it expires.
//
// Joining is one request, as is taking a free lock. The first time that a Locker meets a line it takes one
// more, and a connection on which it hears of its turn; the two stay for half a minute without a waiter.
//
// When ctx ends in line, the place in line, or the lock if it has been granted meanwhile, is given up in the
// background. [errors.ErrUnsupported] is for names with a } but without a hash tag on Ring and Cluster, and
// for users of the server who may not subscribe.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	n := l.names(key)
	ms, err := milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, waitError(key, ctx.Err())
	case err != nil:
		return time.Time{}, waitError(key, err)
	case n.line == "":
		return time.Time{}, waitError(key, errNoLine)
	}
	if l.subs.inLine.Load() {
		return l.waitInLine(ctx, key, token, ttl, n, ms, false)
	}
	start := time.Now()
	s := &sending{ctx: ctx, token: token}
	acquired, err := call(l, s, "wait", key, func() (bool, error) {
		// Whose lock it is, perhaps our own, the line's script will find. So the reply need not say, and
		// that spares go-redis an error for "nobody's".
		set := redis.NewBoolCmd(s.ctx, "set", n.lock, s, "px", ms, "nx")
		err := l.client.Process(s.ctx, set)
		s.answered = err == nil && s.sends == 1
		if err == nil && !set.Val() {
			err = s.refused(l.limits.io)
		}
		return err == nil && set.Val(), err
	})
	switch {
	case acquired:
		return start.Add(ttl), nil
	case err == nil:
		return l.waitInLine(ctx, key, token, ttl, n, ms, true)
	case l.err == nil && !s.isUnsent():
		l.giveUp(ctx, key, n, "", s, false)
	}
	return time.Time{}, err
}

func waitError(key string, err error) error { return fmt.Errorf("redisv9: wait %q: %w", key, err) }

var errNoLine = fmt.Errorf("the name has a } but no hash tag, so its line cannot be in its slot: %w", errors.ErrUnsupported)

// waiting is one Wait that has to stand in line.
type waiting struct {
	id      string
	entry   string // in the line
	granted chan serverTime
	before  chan time.Duration // the one before got the lock for so long
	again   chan struct{}      // a grant may have been missed

	isHeld bool // the lock was seen to be held by another
	unsure bool // a request without an answer may yet put the entry in line

	// A moment on this process's clock, and what the server's clock said then or later.
	asked  time.Time
	server serverTime
}

// serverTime is a server's clock, as the time since 1970.
type serverTime time.Duration

func (w *waiting) address() string { return w.id }

// message is "<seconds> <microseconds>", the time of a grant, or "<ttl>", when the one before got the lock.
func (w *waiting) message(payload string) {
	seconds, micros, isGrant := strings.Cut(payload, " ")
	if !isGrant {
		if ms, err := strconv.ParseInt(payload, 10, 64); err == nil {
			replace(w.before, milliseconds64(ms))
		}
		return
	}
	if t, err := parseTime(seconds, micros); err == nil {
		replace(w.granted, t)
	}
}

func (w *waiting) missed() { replace(w.again, struct{}{}) }

// replace puts v into a channel with room for one value, of which only the last counts.
func replace[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v // the only sender has made room
}

// waitInLine joins the line and waits for its turn. The lock may have been seen to be held.
func (l *Locker) waitInLine(ctx context.Context, key, token string, ttl time.Duration, n names, ms int64,
	isHeld bool) (time.Time, error) {
	if l.err != nil {
		return time.Time{}, waitError(key, l.err)
	}
	servers, err := l.servers(ctx)
	if err != nil {
		return time.Time{}, waitError(key, err)
	}
	id := strconv.FormatUint(l.waiters.Add(1), 10)
	channel := *l.channel.Load()
	w := &waiting{
		id:      id,
		entry:   channel + " " + id + " " + strconv.FormatInt(ms, 10) + " " + token,
		granted: make(chan serverTime, 1),
		before:  make(chan time.Duration, 1),
		again:   make(chan struct{}, 1),
		isHeld:  isHeld,
	}
	// It joins before the subscription is live: its place in line is that of its request.
	subscribed := l.subs.join(servers, channel, w)
	defer l.subs.unlisten(channel, w)
	if *l.channel.Load() != channel { // it was retired just before that
		l.subs.retire(channel)
	}
	live := subscribed.done
	select {
	case <-live:
		if subscribed.live {
			live = nil // so nothing can be missed
		}
	default:
	}

	next := time.NewTimer(lookAgain) // when to look after the line, if nothing is heard
	defer next.Stop()
	var s *sending // the last request
	for late, look := 0, true; ; {
		if look {
			look = false
			asked := time.Now()
			s = &sending{ctx: ctx, token: token}
			place, err := l.askForPlace(s, key, n, ms, w.entry)
			switch {
			case err != nil:
				if !w.asked.IsZero() || !s.isUnsent() {
					l.giveUp(ctx, key, n, w.entry, s, w.unsure)
				}
				if w.isHeld && ctx.Err() != nil {
					err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
				}
				return time.Time{}, err
			case place.acquired:
				return asked.Add(ttl), nil
			}
			w.isHeld, w.unsure = true, w.unsure || !s.answered
			w.asked, w.server = asked, place.now
			next.Reset(place.rest(ttl))
		}
		select {
		case granted := <-w.granted:
			if granted < w.server {
				// The server has said since that the lock is another's: it has lost this grant. (Or its clock was
				// set back: then it says the lock is ours.)
				look = true
				break
			}
			// When it comes too late, the lock is gone, or about to go. With a ttl that is too short for this
			// server, that would go on for ever.
			late++
			deadline := w.deadline(granted, ttl)
			if ctx.Err() == nil && (time.Now().Before(deadline) || late > lateMax) {
				return deadline, nil
			}
			look = true
		case left := <-w.before:
			next.Reset(place{left: left}.rest(ttl))
		case <-w.again:
			look = true
		case <-next.C:
			look = true
		case <-live:
			live = nil
			if !subscribed.live {
				return time.Time{}, l.leaveUnheard(ctx, key, n, w, s, subscribed.err)
			}
			look = true
		case <-ctx.Done():
			l.giveUp(ctx, key, n, w.entry, s, w.unsure)
			return time.Time{}, waitError(key, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld))
		}
	}
}

// leaveUnheard ends a Wait that cannot hear of its turn, because of cause. A caller who may not subscribe goes on
// in another way, with the same token: by then nothing of this one may be left.
func (l *Locker) leaveUnheard(ctx context.Context, key string, n names, w *waiting, last *sending, cause error) error {
	err := unsupported(cause)
	if errors.Is(err, errors.ErrUnsupported) {
		s := &sending{ctx: ctx, token: last.token}
		_, leaveErr := callInOrder(l, s, "wait", key, func() (any, error) {
			return l.run(l.scripts.release, n.lock, n.line, s, w.entry)
		})
		switch {
		case ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
		case leaveErr == nil && s.sends == 1 && !w.unsure:
			return waitError(key, err)
		default: // a request may be under way
			err = cause
		}
	}
	l.giveUp(ctx, key, n, w.entry, last, w.unsure)
	return waitError(key, err)
}

// askForPlace takes the lock if it is free or was granted, and otherwise puts the entry in line if it is not
// there.
func (l *Locker) askForPlace(s *sending, key string, n names, ms int64, entry string) (place, error) {
	return call(l, s, "wait", key, func() (place, error) {
		reply, err := l.run(l.scripts.wait, n.lock, n.line, s, ms, entry, lineTTL.Milliseconds())
		s.answered = err == nil && s.sends == 1
		if err != nil {
			return place{}, err
		}
		return parsePlace(reply)
	})
}

// deadline returns, on this process's clock, a moment that is not after the end of a grant. The two times of
// the server are told apart by its clock, which may have been set meanwhile: but the grant is not older than
// now.
func (w *waiting) deadline(granted serverTime, ttl time.Duration) time.Time {
	deadline := w.asked.Add(time.Duration(granted-w.server) + ttl)
	if latest := time.Now().Add(ttl); latest.Before(deadline) {
		deadline = latest
	}
	return deadline.Add(-margin)
}

// giveUp takes an entry out of the line in the background, and releases the lock if it was granted. One
// request does that for sure when all requests for them have been answered; otherwise one may be under way
// that takes the lock, or puts the entry in line, later, also after an earlier one was found there. It outlives
// ctx.
//
// An entry that may have stayed in line must not be handed the lock: it would be nobody's for its ttl. So its
// channel is given up, as soon as those who wait on it have left, and the scripts pass it over.
func (l *Locker) giveUp(ctx context.Context, key string, n names, entry string, last *sending, unsure bool) {
	go func() {
		defer l.givingUp.Add(-1)
		mayRepeat := l.givingUp.Add(1) <= maxUnsure
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpFor)
		defer cancel()
		for rest := giveUpRest; ; rest = min(4*rest, giveUpMost) {
			s := &sending{ctx: ctx, token: last.token}
			found, err := callInOrder(l, s, "wait", key, func() (bool, error) {
				reply, err := l.run(l.scripts.release, n.lock, n.line, s, entry)
				return reply != int64(0), err
			})
			// In order, that is after the last request has come back: only now may it be asked.
			if err == nil && (found && entry == "" || !unsure && last.isOver()) {
				return
			}
			if mayRepeat && sleep(ctx, rest) {
				continue
			}
			if channel, _, inLine := strings.Cut(entry, " "); inLine {
				l.retire(channel)
			}
			return
		}
	}()
}

// sleep says whether d has passed before the end of ctx.
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

// retire has the Locker's later waiters hear of their turns on another channel, and gives up this one when
// its last waiter has gone.
func (l *Locker) retire(channel string) {
	old := l.channel.Load()
	if *old != channel {
		return
	}
	fresh := newChannel(l.mark)
	if l.channel.CompareAndSwap(old, &fresh) {
		l.subs.retire(channel)
	}
}

// newChannel returns a name for a Locker's own channel. It has no space in it.
func newChannel(mark string) string { return mark + "wait:" + rand.Text() }

// place is what is to be known about a place in line.
type place struct {
	acquired bool          // none: the lock is the asker's
	left     time.Duration // how long the holder still has; negative: for ever
	rank     int64         // how many are before it
	now      serverTime
}

// rest says when to ask again if nothing is heard: when the holder must be gone, the first in line first. It
// is less if the lock may have passed to somebody who has it for a shorter time, and is gone: the best guess at
// that time is one's own ttl.
func (p place) rest(ttl time.Duration) time.Duration {
	rest, rank := lookAgain, time.Duration(min(p.rank, rankMax))
	if p.left >= 0 {
		rest = min(rest, p.left)
	}
	if guess := max(ttl, guessMin); guess < lookAgain {
		rest = min(rest, guess*(rank+1))
	}
	return rest + rank*rankRest + time.Millisecond + mathrand.N(margin)
}

// milliseconds64 is a time that the server told, but no longer than matters.
func milliseconds64(ms int64) time.Duration {
	return time.Duration(min(ms, lookAgain.Milliseconds())) * time.Millisecond
}

// parsePlace reads the reply 1, or {the holder's remaining time in ms, rank, seconds, microseconds}.
func parsePlace(reply any) (place, error) {
	if reply == int64(1) {
		return place{acquired: true}, nil
	}
	if list, ok := reply.([]any); ok && len(list) == 4 {
		left, isLeft := list[0].(int64)
		rank, isRank := list[1].(int64)
		seconds, isSeconds := list[2].(string)
		micros, isMicros := list[3].(string)
		if isLeft && isRank && isSeconds && isMicros {
			now, err := parseTime(seconds, micros)
			return place{left: milliseconds64(left), rank: rank, now: now}, err
		}
	}
	return place{}, fmt.Errorf("the server's reply is not a place in line: %v", reply)
}

// parseTime reads a time as the server gives it.
func parseTime(seconds, micros string) (serverTime, error) {
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseInt(micros, 10, 64)
	return serverTime(time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond), err
}

// unsupported marks the error of a user who may not subscribe, for whom there are other ways to wait.
func unsupported(err error) error {
	if redis.HasErrorPrefix(err, "NOPERM") {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
