package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// counterWindowChecks are the checks of the change from one window to the next.
func counterWindowChecks() []counterCheck {
	return []counterCheck{
		{
			name: "window/turns", rule: counterWindows, run: checkWindowTurns,
			cause: "a count without the number of its window, whose expiry is forgotten or extended",
		},
		{
			name: "window/left", rule: counterWindows, run: checkWindowLeft,
			cause: "windows that begin with the first count of a key; the expiry in place of the rest of the window",
		},
		{
			name: "window/storm", rule: counterOnce, run: checkWindowStorm,
			cause: "counting in one window and reading the time of another",
		},
		{
			name: "window/thousand-turns", rule: counterOnce, run: checkThousandTurns,
			cause: "looking whether there is a count, and incrementing it when it has expired",
		},
		{
			name: "expiry/always", rule: counterNothing, needs: []counterNeed{needsEternal}, run: checkEternal,
			cause: "INCR without EXPIRE, or EXPIRE in another step; a count that creates the key again",
		},
		{
			name: "context/ended", rule: counterContext, run: checkCountContext,
			cause: "a context that is passed on, but not looked at",
		},
		{
			name: "clock/server", rule: counterWindows, needs: []counterNeed{needsCounterAddr}, run: checkServerClock,
			cause: "the number of the window by the client's clock",
		},
	}
}

func checkWindowTurns(e *counterEnv) {
	per := e.stretched(time.Second)
	e.fresh(per)
	key := e.key()
	first := e.a.counts(key, 3, per).wants(3, 0)
	first.over()
	e.b.counts(key, 0, per).isAfter(first, 1).wants(0, 3)
	second := e.a.counts(key, 2, per).isAfter(first, 1).wants(2, 3)
	e.b.counts(key, 4, per).isAfter(first, 1).wants(6, 3)
	second.over()
	third := e.b.counts(key, 0, per).isAfter(first, 2).wants(0, 6)
	third.over()
	e.a.counts(key, 0, per).isAfter(first, 3).wants(0, 0)
	e.a.counts(key, 1, per).isAfter(first, 3).wants(1, 0)
}

// All calls agree on when windows end, regardless of their keys and of whether they count.
func checkWindowLeft(e *counterEnv) {
	per := e.stretched(time.Second)
	first := e.a.counts(e.key(), 1, per)
	from, to := first.ends()
	for i := range int64(45) {
		client := []*counterClient{e.a, e.b}[i%2]
		r := client.counts(e.key(), i%3, per)
		since := time.Duration(r.after(first)) * per
		if earliest, latest := r.ends(); earliest.After(to.Add(since)) || latest.Before(from.Add(since)) {
			e.fail(r, fmt.Sprintf("an end of the window %v after that of the first call, as far as that is known", since))
		}
		time.Sleep(per / 30)
	}
}

// Processes count the same keys while windows pass. They do so in step, so that several of them are
// the first to count a key in a window.
func checkWindowStorm(e *counterEnv) {
	const workers, keys = 6, 8
	per := e.stretched(500 * time.Millisecond)
	e.fresh(per)
	var first [keys]countReply
	for i := range first {
		first[i] = e.a.counts(e.key(), 1, per)
	}
	var replies [keys][]countReply
	for until := time.Now().Add(3 * per); time.Now().Before(until); time.Sleep(per / 100) {
		for i := range replies {
			replies[i] = append(replies[i], e.together(workers, 1, func(c *counterClient) countReply {
				return c.tries(first[i].key, 1, per)
			})...)
		}
	}
	for i := range replies {
		e.wantSums(first[i], replies[i], workers)
	}
}

// wantSums requires of the calls of several workers that in each window the sums are 1, 2, 3 and so
// on, and that the next window has the last of them as the previous count. For a moment that may
// differ by the calls that are under way, since a client may count in the window in which it sent the
// request, or move its count.
func (e *counterEnv) wantSums(first countReply, replies []countReply, workers int) {
	sums := map[int]map[int64]countReply{0: {1: first}}
	for _, r := range replies {
		w := r.plausible().after(first)
		if sums[w] == nil {
			sums[w] = make(map[int64]countReply)
		}
		if _, ok := sums[w][r.counts.Current]; ok {
			e.fail(r, "a sum that no other call of the same window got")
		}
		sums[w][r.counts.Current] = r
	}
	if len(sums) < 3 {
		e.tooSlow()
	}
	for w, in := range sums {
		for sum, r := range in {
			if sum > int64(len(in)) {
				e.fail(r, fmt.Sprintf("at most %d, the number of counts in the window", len(in)))
			}
			more := r.counts.Previous - int64(len(sums[w-1]))
			if max(more, -more) > int64(workers) {
				e.fail(r, fmt.Sprintf("a previous count of %d", len(sums[w-1])))
			}
		}
	}
}

// A thousand keys are counted again and again while windows end.
func checkThousandTurns(e *counterEnv) {
	const workers, each = 8, 125
	per := e.stretched(800 * time.Millisecond)
	var keys [workers][each]string
	for i := range keys {
		for j := range keys[i] {
			keys[i][j] = e.key()
		}
	}
	e.fresh(per)
	until := time.Now().Add(per * 5 / 2)
	replies := make([][each][]countReply, workers)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			client := []*counterClient{e.a, e.b}[i%2]
			for time.Now().Before(until) {
				for j, key := range keys[i] {
					replies[i][j] = append(replies[i][j], client.tries(key, 1, per))
				}
				time.Sleep(per / 10)
			}
		})
	}
	all.Wait()
	turns := 0
	for i := range replies {
		for j := range replies[i] {
			turns += e.follow(replies[i][j])
		}
	}
	if turns < workers*each {
		e.tooSlow()
	}
	e.wantNoEternal()
}

// follow requires that each call counts 1 while processes take turns, and returns how often a
// window ended between two calls.
func (e *counterEnv) follow(replies []countReply) (turns int) {
	last := replies[0].plausible()
	for i, r := range replies {
		r.plausible()
		if i == 0 {
			r.wants(1, 0)
			continue
		}
		switch r.after(last) {
		case 0:
			r.wants(last.counts.Current+1, last.counts.Previous)
		case 1:
			turns++
			r.wants(1, last.counts.Current)
		default:
			e.tooSlow()
		}
		last = r
	}
	return turns
}

func checkEternal(e *counterEnv) {
	per := e.stretched(300 * time.Millisecond)
	for range 3 {
		key := e.key()
		for range 8 {
			e.a.counts(key, 1, per)
			e.wantNoEternal()
			e.b.counts(key, 0, per)
			e.wantNoEternal()
			time.Sleep(per / 4)
		}
	}
}

// wantNoEternal fails if the backend has a record without an expiry.
func (e *counterEnv) wantNoEternal() {
	if e.config.Eternal == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.OpTimeout)
	defer cancel()
	n, err := e.config.Eternal(ctx)
	if err != nil || n > 0 {
		e.failed(fmt.Sprintf("%s\n  want          no record without an expiry\n  got           %d, %v", e.historyText(), n, err))
	}
}

func checkCountContext(e *counterEnv) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	key := e.key()
	first := e.a.counts(key, 1, longWindow)
	r := e.a.with(ctx).tries(key, 1, longWindow)
	if r.err == nil || ctx.Err() == nil || !isContextError(r.err) {
		e.fail(r, "ctx's error")
	}
	e.b.counts(key, 0, longWindow).unbroken(first).wants(1, 0)
}

// C is a process whose clock is years behind: one in a bubble, where it is the year 2000.
func checkServerClock(e *counterEnv) {
	t, ok := e.tb.TB.(*testing.T)
	if !ok {
		e.tb.SkipFor("it needs a *testing.T")
	}
	key := e.key()
	first := e.a.counts(key, 1, longWindow)
	var r countReply
	synctest.Test(t, func(t *testing.T) {
		c := e.config.New(t, e.config.Addr)
		client := &counterClient{e: e, name: "C", counter: c}
		r = client.tries(key, 2, longWindow)
	})
	last := e.b.counts(key, 0, longWindow).unbroken(first)
	r.plausible().wants(3, 0)
	last.wants(3, 0)
	if left := r.counts.Left - first.counts.Left; left > time.Minute {
		e.fail(r, fmt.Sprintf("about %v left", first.counts.Left))
	}
}
