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
