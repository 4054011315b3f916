package pubsub

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMessages(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		var a, b, other listener
		sub := h.Join("k", &a)
		unsettled(t, sub)
		if sub.Err() == nil {
			t.Fatal("live before it can be")
		}
		second := h.Join("k", &b)
		third := h.Join("other", &other)
		time.Sleep(time.Second)
		settled(t, sub, nil)
		settled(t, second, nil)
		settled(t, third, nil)
		settled(t, h.Join("k", new(listener)), nil) // at once
		s.publish("k", "1")
		s.publish("k", "2")
		s.publish("nobody's", "3")
		hears(t, &a, "[1 2] missed 0")
		hears(t, &b, "[1 2] missed 0")
		hears(t, &other, "[] missed 0")
		sub.Close()
		sub.Close()
		if !errors.Is(sub.Err(), errLeft) {
			t.Fatal(sub.Err())
		}
		s.publish("k", "4")
		hears(t, &a, "[] missed 0")
		hears(t, &b, "[4] missed 0")
		equal(t, s.dialed(), 1, "dials")
	})
}

// A dial that subscribes to its channel, as with some clients, is one request with one answer, even
// if the channel was left meanwhile.
func TestDialSubscribes(t *testing.T) {
	for range 20 {
		play(t, func(t *testing.T, s *server, h *Hub) {
			s.eager = true
			for i := range 10 {
				h.Join(fmt.Sprint(i), new(listener))
			}
			time.Sleep(time.Second)
			equal(t, s.publish("0", "m"), 1, "listening")
			equal(t, s.dialed(), 1, "dials")
			s.set(func() { s.dialHangs = make(chan struct{}) })
			s.cut()
			time.Sleep(time.Second)
			h.mu.Lock()
			var subs []*Subscription
			for _, c := range h.channels.m {
				subs = append(subs, c.subs...)
			}
			h.mu.Unlock()
			last := h.Join("last", new(listener))
			for _, sub := range subs {
				sub.Close()
			}
			close(s.dialHangs)
			time.Sleep(3 * time.Second)
			settled(t, last, nil)
			equal(t, h.Channels(), 1, "channels")
			equal(t, s.dialed(), 2, "dials")
		})
	}
}

// A channel is kept for about a second and a connection for half a minute, and both serve new
// listeners.
func TestLinger(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		for range 3 {
			sub := h.Join("k", new(listener))
			time.Sleep(channelLinger / 4)
			sub.Close()
			h.Join("k", new(listener)).Close()
			time.Sleep(channelLinger / 4)
		}
		equal(t, strings.Join(s.log(), " "), "+k", "requests")
		time.Sleep(3 * time.Second)
		equal(t, strings.Join(s.log(), " "), "+k -k", "requests")
		equal(t, h.Channels(), 0, "channels")
		time.Sleep(defaultLinger - 10*time.Second)
		sub := h.Join("k", new(listener))
		time.Sleep(time.Second)
		settled(t, sub, nil)
		equal(t, s.dialed(), 1, "dials")
		sub.Close()
		time.Sleep(defaultLinger - 2*time.Second)
		equal(t, s.open(), 1, "connections")
		time.Sleep(4 * time.Second)
		equal(t, s.open(), 0, "connections")
		equal(t, h.InUse(), false, "in use")
		sub = h.Join("k", new(listener))
		time.Sleep(time.Second)
		settled(t, sub, nil)
		equal(t, s.dialed(), 2, "dials")
	})
}

// Drop unsubscribes at once, unless there are other listeners.
func TestDrop(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		a, b := h.Join("k", new(listener)), h.Join("k", new(listener))
		time.Sleep(time.Second)
		a.Drop()
		time.Sleep(10 * trip)
		equal(t, s.publish("k", ""), 1, "listening")
		b.Drop()
		time.Sleep(10 * trip)
		equal(t, s.publish("k", ""), 0, "listening")
	})
}

// Whatever the order of joins and leaves, the last one counts.
func TestResubscribe(t *testing.T) {
	for _, pause := range []time.Duration{0, trip / 2, 2 * trip} {
		play(t, func(t *testing.T, s *server, h *Hub) {
			var l listener
			for range 5 {
				sub := h.Join("k", &l)
				time.Sleep(pause)
				sub.Drop()
				time.Sleep(pause)
			}
			sub := h.Join("k", &l)
			h.Join("other", new(listener)) // what comes after the answers
			time.Sleep(time.Second)
			settled(t, sub, nil)
			equal(t, s.publish("k", "m"), 1, "listening")
			hears(t, &l, "[m] missed 0")
			sub.Drop()
			time.Sleep(time.Second)
			equal(t, s.publish("k", "m"), 0, "listening")
			equal(t, h.Channels(), 1, "channels")
			equal(t, s.dialed(), 1, "dials")
		})
	}
}

// A refused dial settles the first attempt. The hub goes on trying, less and less often, and
// notifies its listeners when it is live.
func TestDialRefused(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.down = errDown
		var l listener
		sub := h.Join("k", &l)
		synctest.Wait()
		settled(t, sub, errDown)
		time.Sleep(time.Minute)
		if s.dialed() < 20 || s.dialed() > 70 {
			t.Fatalf("%d dials in a minute", s.dialed())
		}
		hears(t, &l, "[] missed 0")
		// A new listener does not wait for the next attempt, and does not cause many.
		start, before := time.Now(), s.dialed()
		late := h.Join("k", &l)
		<-late.Done()
		if d := time.Since(start); d > 150*time.Millisecond {
			t.Fatalf("took %v", d)
		}
		late.Close()
		for time.Since(start) < 10*time.Second {
			h.Join("k", &l).Close()
			time.Sleep(time.Millisecond)
		}
		if n := s.dialed() - before; n > 110 {
			t.Fatalf("%d dials in ten seconds", n)
		}
		s.set(func() { s.down = nil })
		time.Sleep(longRest + time.Second)
		equal(t, sub.Err(), nil, "error")
		hears(t, &l, "[] missed 1")
	})
}

// A dial that hangs is one dial, and an error within the timeout and a little.
func TestDialHangs(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.dialHangs = make(chan struct{})
		var l listener
		for range 3 {
			start := time.Now()
			sub := h.Join("k", &l)
			<-sub.Done()
			if d := time.Since(start); d < timeout || d > timeout+2*time.Second {
				t.Fatalf("took %v", d)
			}
			if sub.Err() == nil {
				t.Fatal("live")
			}
		}
		equal(t, s.dialed(), 1, "dials")
		close(s.dialHangs)
		time.Sleep(time.Second)
		settled(t, h.Join("k", new(listener)), nil)
		hears(t, &l, "[] missed 3")
	})
}

// A dial that hangs when all have left does not keep the hub from ending, and starts nothing when
// it returns.
func TestDialHangsToTheEnd(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		hang := make(chan struct{})
		h.dial = func(context.Context, string) (Conn, error) { // it does not mind its context
			<-hang
			return s.dial(t.Context(), "k")
		}
		sub := h.Join("k", new(listener))
		<-sub.Done()
		sub.Close()
		time.Sleep(defaultLinger + 2*time.Second)
		equal(t, h.InUse(), false, "in use")
		equal(t, h.Channels(), 0, "channels")
		close(hang)
		synctest.Wait()
		equal(t, s.open(), 0, "connections")
	})
}

func TestClosedClient(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		var l listener
		sub := h.Join("k", &l)
		time.Sleep(time.Second)
		s.set(func() { s.down = fmt.Errorf("it is over: %w", ErrClosed) })
		s.cut()
		time.Sleep(time.Second)
		equal(t, h.InUse(), false, "in use")
		equal(t, s.dialed(), 2, "dials")
		settled(t, sub, ErrClosed)
		hears(t, &l, "[] missed 1")
		again := h.Join("k", &l)
		synctest.Wait()
		settled(t, again, ErrClosed)
		sub.Close()
		again.Close()
		equal(t, h.Channels(), 0, "channels")
	})
}

// A refused channel affects no other. It is requested again by the next Join and from time to time.
func TestRefusedChannel(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.refuses["theirs"] = true
		var mine, theirs listener
		h.Join("mine", &mine)
		sub := h.Join("theirs", &theirs)
		time.Sleep(time.Second)
		settled(t, sub, errNoPerm)
		again := h.Join("theirs", &theirs)
		unsettled(t, again)
		time.Sleep(time.Second)
		settled(t, again, errNoPerm)
		again.Close()
		s.publish("mine", "m")
		hears(t, &mine, "[m] missed 0")
		equal(t, s.dialed(), 1, "dials")

		time.Sleep(time.Minute)
		if n := strings.Count(strings.Join(s.log(), " "), "+theirs"); n > 10 {
			t.Fatalf("it is asked for %d times in a minute", n)
		}
		s.set(func() { s.refuses["theirs"] = false })
		time.Sleep(2 * quiet)
		equal(t, sub.Err(), nil, "error")
		hears(t, &theirs, "[] missed 1")
		s.publish("theirs", "m")
		hears(t, &theirs, "[m] missed 0")

		// A revoked right has an effect after the next break.
		s.set(func() { s.refuses["theirs"] = true })
		s.cut()
		time.Sleep(time.Second)
		settled(t, sub, errNoPerm)
		hears(t, &mine, "[] missed 2")
		hears(t, &theirs, "[] missed 1")
	})
}

// A channel is refused while it is being left and is wanted again.
func TestRefusedAndLeft(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.refuses["k"] = true
		h.Join("other", new(listener))
		for range 5 {
			sub := h.Join("k", new(listener))
			time.Sleep(trip / 2)
			sub.Drop()
		}
		sub := h.Join("k", new(listener))
		time.Sleep(time.Second)
		settled(t, sub, errNoPerm)
		s.set(func() { s.refuses["k"] = false })
		time.Sleep(2 * quiet)
		equal(t, sub.Err(), nil, "error")
		equal(t, s.publish("k", ""), 1, "listening")
		equal(t, s.dialed(), 1, "dials")
	})
}

// Live listeners are notified when the connection breaks, and again when it is back.
func TestBreak(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		var l listener
		sub := h.Join("k", &l)
		time.Sleep(time.Second)
		for range 3 {
			s.set(func() { s.down = errDown })
			s.cut()
			time.Sleep(time.Second)
			settled(t, sub, errDown)
			hears(t, &l, "[] missed 1")
			s.set(func() { s.down = nil })
			time.Sleep(longRest + 2*time.Second)
			settled(t, sub, nil)
			hears(t, &l, "[] missed 1")
			s.publish("k", "m")
			hears(t, &l, "[m] missed 0")
		}
	})
}

// If a connection breaks during a first attempt, that has one more chance.
func TestBreakWhilePending(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.hung = true
		sub := h.Join("k", new(listener))
		time.Sleep(time.Millisecond)
		s.set(func() { s.hung = false })
		s.cut()
		time.Sleep(time.Second)
		settled(t, sub, nil)
		equal(t, s.dialed(), 2, "dials")

		s.set(func() { s.hung = true })
		other := h.Join("other", new(listener))
		synctest.Wait()
		s.cut()
		time.Sleep(joinRest + time.Millisecond)
		unsettled(t, other)
		s.cut()
		synctest.Wait()
		settled(t, other, errBroken)
		s.set(func() { s.hung = false })
		time.Sleep(longRest + time.Second)
		equal(t, other.Err(), nil, "error")
	})
}

// A server that does not answer is detected after the timeout. A silent one is pinged.
func TestSilence(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		var l listener
		sub := h.Join("k", &l)
		time.Sleep(time.Minute)
		hears(t, &l, "[] missed 0")
		equal(t, s.dialed(), 1, "dials")
		if n := strings.Count(strings.Join(s.log(), " "), "?"); n < 4 || n > 6 {
			t.Fatalf("%d pings in a minute", n)
		}
		s.set(func() { s.hung = true })
		time.Sleep(quiet + timeout + 3*time.Second)
		hears(t, &l, "[] missed 1")
		if err := sub.Err(); err == nil {
			t.Fatal("live")
		}
		s.set(func() { s.hung = false })
		time.Sleep(timeout + longRest + 3*time.Second)
		hears(t, &l, "[] missed 1")
		equal(t, sub.Err(), nil, "error")
	})
}

// While a server hangs, no listener waits for much longer than the timeout.
func TestHungServer(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		var l listener
		h.Join("k", &l)
		time.Sleep(time.Second)
		s.set(func() { s.hung = true })
		for range 5 {
			start := time.Now()
			sub := h.Join("other", new(listener))
			<-sub.Done()
			if d := time.Since(start); d > timeout+2*time.Second {
				t.Fatalf("took %v", d)
			}
			sub.Close()
		}
		if s.dialed() > 10 {
			t.Fatalf("%d dials", s.dialed())
		}
	})
}

// However many channels there are, few requests are unanswered at a time.
func TestWindow(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		const n = 10 * window
		var last *Subscription
		var l listener
		for i := range n {
			last = h.Join(fmt.Sprint(i), &l)
		}
		time.Sleep(time.Second)
		settled(t, last, nil)
		s.cut()
		time.Sleep(time.Second)
		for i := range n {
			equal(t, s.publish(fmt.Sprint(i), "m"), 1, "listening")
		}
		synctest.Wait()
		for _, c := range s.conns {
			if c.most > window || c.most < window/2 {
				t.Fatalf("%d unanswered requests", c.most)
			}
		}
		equal(t, len(s.conns), 2, "connections")
	})
}

// A slow server is not a dead one.
func TestSlowServer(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.slow = 8 * time.Millisecond // four seconds for a window, longer than the timeout
		var last *Subscription
		for i := range 5 * window {
			last = h.Join(fmt.Sprint(i), new(listener))
		}
		time.Sleep(time.Minute)
		equal(t, last.Err(), nil, "error")
		equal(t, s.dialed(), 1, "dials")
	})
}

// After a break, all listeners that missed something are notified, a thousand a second, in any order.
func TestPace(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		const n = 3000
		listeners := make([]listener, n)
		for i := range listeners {
			h.Join("k", &listeners[i])
		}
		time.Sleep(time.Second)
		start := time.Now()
		s.cut()
		time.Sleep(time.Minute)
		synctest.Wait()
		told := make(map[int64]int)
		for i := range listeners {
			if listeners[i].missed == 0 {
				t.Fatal("not told")
			}
			told[listeners[i].told.Sub(start).Milliseconds()/100]++
		}
		for at, n := range told {
			if n > 120 {
				t.Fatalf("%d told within the tenth of a second at %d00 ms", n, at)
			}
		}
	})
}

// Some versions of client libraries lose answers. A later answer makes up for it, since they are in
// order.
func TestLostAnswers(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		s.loses = map[string]bool{"1": true, "2": true, "5": true}
		var subs []*Subscription
		for i := range 10 {
			subs = append(subs, h.Join(fmt.Sprint(i), new(listener)))
		}
		time.Sleep(time.Second)
		h.Join("last", new(listener)) // in case that one of them was
		time.Sleep(time.Second)
		for i, sub := range subs {
			settled(t, sub, nil)
			equal(t, s.publish(fmt.Sprint(i), "m"), 1, "listening")
		}
		equal(t, s.dialed(), 1, "dials")

		lost := h.Join("x", new(listener))
		s.set(func() { s.loses["x"] = true })
		time.Sleep(time.Second)
		lost.Drop()
		time.Sleep(time.Second)
		equal(t, s.publish("x", "m"), 0, "listening")
		h.Join("y", new(listener))
		time.Sleep(time.Second)
		equal(t, h.Channels(), 12, "channels")
		equal(t, s.dialed(), 1, "dials")
	})
}

// A panic of the client and an unexpected reply are errors of the connection.
func TestGarbage(t *testing.T) {
	for name, e := range map[string]Event{
		"a panic":           {},
		"an answer":         {Kind: Answer, Channel: "k"},
		"another's answer":  {Kind: Answer, Channel: "x"},
		"a refusal unasked": {Kind: Refusal, Err: errNoPerm},
	} {
		play(t, func(t *testing.T, s *server, h *Hub) {
			var l listener
			sub := h.Join("k", &l)
			time.Sleep(time.Second)
			s.set(func() { s.conns[0].events <- e })
			time.Sleep(time.Second)
			hears(t, &l, "[] missed 2")
			settled(t, sub, nil)
			equal(t, s.dialed(), 2, name+": dials")
		})
	}
	play(t, func(t *testing.T, s *server, h *Hub) {
		h.dial = func(context.Context, string) (Conn, error) { panic("garbage") }
		sub := h.Join("k", new(listener))
		synctest.Wait()
		<-sub.Done()
		if err := sub.Err(); err == nil || !strings.Contains(err.Error(), "garbage") {
			t.Fatal(err)
		}
	})
}

func TestWatch(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		down := &server{down: errDown}
		other := New(down.dial, timeout)
		ctx, cancel := context.WithCancel(t.Context())
		woken, err := Watch(ctx, "k", h, other)
		equal(t, err, nil, "one server is up")
		s.publish("k", "m")
		s.publish("k", "m")
		synctest.Wait()
		equal(t, len(woken), 1, "wake-ups")
		<-woken
		down.set(func() { down.down = nil })
		time.Sleep(longRest + time.Second)
		equal(t, len(woken), 1, "wake-ups, as the other server is up")
		<-woken
		cancel()
		synctest.Wait()
		s.publish("k", "m")
		synctest.Wait()
		equal(t, len(woken), 0, "wake-ups")
		if _, err = Watch(ctx, "k", h); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(defaultLinger + 2*time.Second)

		down.set(func() { down.down = errDown })
		if _, err = Watch(t.Context(), "k", other); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
		if _, err = Watch(t.Context(), "k"); err == nil {
			t.Fatal("no server")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.set(func() { s.hung = true })
		if _, err = Watch(short, "k", h); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(defaultLinger + 2*time.Second)
		equal(t, h.Channels()+other.Channels(), 0, "channels")
	})
}

// A peak leaves no memory behind, even while there are still listeners.
func TestPeak(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		h.Join("stays", new(listener))
		memory := func() uint64 {
			synctest.Wait()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		time.Sleep(time.Second)
		before := memory()
		subs := make([]*Subscription, 100_000)
		for i := range subs {
			subs[i] = h.Join(fmt.Sprint("channel", i), new(listener))
		}
		time.Sleep(timeout - time.Second)
		peak := memory()
		for _, sub := range subs {
			sub.Close()
		}
		clear(subs)
		subs = nil
		time.Sleep(5 * time.Second)
		s.set(func() { // the test's own
			c := s.conns[0]
			c.log, c.on = nil, map[string]bool{"stays": true}
		})
		after := memory()
		equal(t, h.Channels(), 1, "channels")
		t.Logf("%d KiB before, %d at the peak, %d after", before>>10, peak>>10, after>>10)
		if after > before+peak/50 {
			t.Errorf("%d KiB are kept", (after-before)>>10)
		}
	})
}

// A hub's goroutines do not carry the labels of its first caller.
func TestLabels(t *testing.T) {
	s := &server{refuses: make(map[string]bool)}
	h := New(s.dial, timeout)
	h.SetLinger(0)
	var sub *Subscription
	pprof.Do(t.Context(), pprof.Labels("caller", "first"), func(context.Context) {
		sub = h.Join("k", new(listener))
	})
	<-sub.Done()
	equal(t, sub.Err(), nil, "error")
	var profile strings.Builder
	equal(t, pprof.Lookup("goroutine").WriteTo(&profile, 1), nil, "error")
	if strings.Contains(profile.String(), `"caller"`) || !strings.Contains(profile.String(), "(*Hub).run") {
		t.Error(profile.String())
	}
	sub.Close()
	for h.InUse() {
		time.Sleep(time.Millisecond)
	}
}

// A connection that does not take what is written to it is closed.
func TestHungWrite(t *testing.T) {
	play(t, func(t *testing.T, s *server, h *Hub) {
		h.dial = func(ctx context.Context, channel string) (Conn, error) {
			c, err := s.dial(ctx, channel)
			if s.dialed() == 2 {
				return hungWriter{c}, err
			}
			return c, err
		}
		var l listener
		sub := h.Join("k", &l)
		time.Sleep(time.Second)
		s.cut()
		time.Sleep(timeout + 5*time.Second)
		settled(t, sub, nil)
		hears(t, &l, "[] missed 2")
		equal(t, s.dialed(), 3, "dials")
	})
}

// hungWriter is a connection whose writes end only with it.
type hungWriter struct{ Conn }

func (c hungWriter) Flush() error {
	<-c.Conn.(*fakeConn).closed
	return errClosed
}
