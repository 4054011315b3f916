package pubsub

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
