package locker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/internal/waithook"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// journal is an Observer that remembers events as lines, with what they took in seconds.
type journal struct {
	mu     sync.Mutex
	events []locker.Event
	values []any
	use    func(ctx context.Context, e locker.Event) // called for each event
}

type journalKey struct{}

func (j *journal) Observe(ctx context.Context, e locker.Event) {
	j.mu.Lock()
	j.events = append(j.events, e)
	j.values = append(j.values, ctx.Value(journalKey{}))
	use := j.use
	j.mu.Unlock()
	if use != nil {
		use(ctx, e)
	}
}

// take returns the events so far, and forgets them.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := []string{}
	for _, e := range j.events {
		line := fmt.Sprint(e.Kind, " ", e.Key, " ", e.Took.Seconds())
		switch {
		case errors.Is(e.Err, locker.ErrHeld):
			line += " held"
		case errors.Is(e.Err, locker.ErrNotHeld):
			line += " not held"
		case e.Err != nil:
			line += " error"
		}
		lines = append(lines, line)
	}
	j.events = nil
	return lines
}

// errs returns the errors of the events of a kind so far.
func (j *journal) errs(kind locker.EventKind) (errs []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.Kind == kind && e.Err != nil {
			errs = append(errs, e.Err.Error())
		}
	}
	return errs
}

func TestObserved(t *testing.T) {
	bubble(t, "lock, extend, unlock", func(t *testing.T) {
		j := &journal{}
		l := locker.Observed(memory.New(), j)
		lease := tryLock(t, l, 30*time.Second, locker.WithKeepAlive())
		assert.Equal(t, []string{"acquired k 0"}, j.take())
		time.Sleep(12 * time.Second)
		extended := j.take()
		require.Len(t, extended, 1)
		assert.Regexp(t, `^extended k (9\.\d+|10)$`, extended[0])
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		time.Sleep(time.Second)
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Error(t, lease.Unlock(t.Context()))
		assert.Equal(t, []string{"extended k 12", "unlocked k 13"}, j.take())
	})
	for name, inner := range map[string]func() locker.Locker{
		"queueing": func() locker.Locker { return memory.New() },
		"watching": func() locker.Locker { return watching{memory.New()} },
		"polling":  func() locker.Locker { return plain{memory.New()} },
		"cohort":   func() locker.Locker { return cohort.New(memory.New()) },
	} {
		bubble(t, "waiting: "+name, func(t *testing.T) {
			j := &journal{}
			bare := inner()
			held := tryLock(t, bare, time.Hour)
			l := locker.Observed(bare, j)
			start := time.Now()
			time.AfterFunc(time.Minute, func() { assert.NoError(t, held.Unlock(context.Background())) })
			time.AfterFunc(time.Second, func() { assert.Equal(t, []string{"waiting k 0"}, j.take()) })
			lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
			require.NoError(t, err)
			assert.Equal(t, []string{fmt.Sprint("acquired k ", time.Since(start).Seconds())}, j.take())

			_, err = locker.TryLock(t.Context(), l, "k", time.Hour)
			assert.ErrorIs(t, err, locker.ErrHeld)
			assert.Equal(t, []string{`locker: try lock "k": the lock is held by another token`}, j.errs(locker.Refused))
			assert.Equal(t, []string{"refused k 0 held"}, j.take())
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = locker.Lock(ctx, l, "k", time.Hour)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, []string{"waiting k 0", "refused k 1 held"}, j.take())
			assert.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, []string{"unlocked k 1"}, j.take())
		})
	}
	bubble(t, "failures", func(t *testing.T) {
		j := &journal{}
		l := &fake{}
		observed := locker.Observed(l, j)
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			_, _ = l.doAcquire(ctx, "k", token, ttl)
			time.Sleep(time.Second)
			return false, errBackend
		}
		_, err := locker.Lock(t.Context(), observed, "k", time.Minute)
		assert.ErrorIs(t, err, errBackend)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"failed k 1 error", "cleaned up k 1"}, j.take())

		l.onAcquire = nil
		lease := tryLock(t, observed, time.Minute)
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), errBackend)
		l.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
		assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
		l.onRelease = nil
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, []string{"acquired k 0", "extend failed k 0 error", "unlock failed k 0 error", "unlocked k 0"},
			j.take())
	})
	bubble(t, "retries are one acquisition", func(t *testing.T) {
		j := &journal{}
		l := &fake{}
		l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if n, _, _ := l.counts(); n < 10 {
				return false, errBackend
			}
			return l.doAcquire(ctx, "k", token, ttl)
		}
		_, err := locker.Lock(t.Context(), locker.Observed(l, j), "k", time.Minute, locker.WithRetry())
		require.NoError(t, err)
		events := j.take()
		assert.Len(t, events, 2)
		assert.Equal(t, "waiting k 0 error", events[0])
		assert.Contains(t, events[1], "acquired k")
	})
	bubble(t, "what never began is no event", func(t *testing.T) {
		j := &journal{}
		l := locker.Observed(memory.New(), j)
		_, err := locker.TryLock(t.Context(), l, "", time.Minute)
		assert.Error(t, err)
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = locker.Lock(dead, l, "k", time.Minute)
		assert.Error(t, err)
		assert.Empty(t, j.take())
	})
	bubble(t, "loss", func(t *testing.T) {
		l := &fake{}
		for name, c := range map[string]struct {
			opts []locker.Option
			lose func(*locker.Lease)
			want []string
		}{
			"refused": {nil, func(lease *locker.Lease) {
				l.steal("k", time.Minute)
				assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), locker.ErrNotHeld)
			}, []string{"lost k 0 not held"}},
			"the keep-alive is refused": {[]locker.Option{locker.WithKeepAlive()}, func(*locker.Lease) {
				l.steal("k", time.Minute)
				time.Sleep(2 * time.Second)
			}, []string{"lost k 1 not held"}},
			"at the deadline": {nil, func(lease *locker.Lease) {
				time.Sleep(10 * time.Second)
				assert.Error(t, lease.Err())
				assert.Error(t, lease.Err())
			}, []string{"lost k 3 not held"}},
			"at the deadline, waited for": {nil, func(lease *locker.Lease) {
				<-lease.Lost()
				synctest.Wait()
			}, []string{"lost k 3 not held"}},
			"at the deadline, after MaxHold": {
				[]locker.Option{locker.WithKeepAlive(), locker.WithMaxHold(time.Second / 2)}, func(*locker.Lease) {
					time.Sleep(10 * time.Second)
				}, []string{"lost k 3 not held"}},
			"late answer": {nil, func(lease *locker.Lease) {
				l.extendBy(func(context.Context, string, time.Duration) (bool, error) {
					time.Sleep(5 * time.Second)
					return true, nil
				})
				assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), locker.ErrNotHeld)
				l.extendBy(nil)
			}, []string{"lost k 3 not held"}},
		} {
			j := &journal{}
			lease, err := locker.Lock(t.Context(), locker.Observed(l, j), "k", 3*time.Second, c.opts...)
			require.NoError(t, err, name)
			j.take()
			c.lose(lease)
			got := slices.DeleteFunc(j.take(), func(line string) bool { return strings.HasPrefix(line, "overdue") })
			if name == "the keep-alive is refused" { // its moment is random
				require.Len(t, got, 1)
				assert.Regexp(t, `^lost k (0\.9\d*|1) not held$`, got[0])
			} else {
				assert.Equal(t, c.want, got, name)
			}
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			got = j.take()
			require.Len(t, got, 1, name)
			assert.Contains(t, got[0], "unlock failed k ", name)
			time.Sleep(time.Minute)
		}
	})
	bubble(t, "a dead backend", func(t *testing.T) {
		j := &journal{}
		l := &fake{}
		tryLock(t, locker.Observed(l, j), 3*time.Second, locker.WithKeepAlive())
		l.extendBy(blackhole)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		events := j.take()
		assert.Equal(t, "lost k 3 not held", events[len(events)-1], "on time")
		for _, e := range events[1 : len(events)-1] {
			assert.Contains(t, e, "extend failed k ")
		}
	})
	bubble(t, "an extension that Unlock interrupts is no failure", func(t *testing.T) {
		j := &journal{}
		l := &fake{}
		lease := tryLock(t, locker.Observed(l, j), 3*time.Second, locker.WithKeepAlive())
		l.extendBy(blackhole)
		time.Sleep(1100 * time.Millisecond)
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.Equal(t, []string{"acquired k 0", "unlocked k 1.1"}, j.take())
	})
	bubble(t, "a Waiter that reports late and twice", func(t *testing.T) {
		j := &journal{}
		l := &lined{fake: &fake{}}
		var waitCtx context.Context
		l.wait = func(ctx context.Context, _, _ string, ttl time.Duration) (time.Time, error) {
			waitCtx = ctx
			return time.Now().Add(ttl), nil
		}
		_, err := locker.Lock(t.Context(), locker.Observed(l, j), "k", time.Minute)
		require.NoError(t, err)
		waithook.Call(waitCtx)
		assert.Equal(t, []string{"acquired k 0"}, j.take())
		l.wait = func(ctx context.Context, _, _ string, ttl time.Duration) (time.Time, error) {
			waithook.Call(ctx)
			waithook.Call(ctx)
			return time.Now().Add(ttl), nil
		}
		_, err = locker.Lock(t.Context(), locker.Observed(l, j), "k", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, []string{"waiting k 0", "acquired k 0"}, j.take())
	})
	bubble(t, "detached and resumed", func(t *testing.T) {
		j := &journal{}
		l := locker.Observed(memory.New(), j)
		lease := tryLock(t, l, time.Minute)
		time.Sleep(time.Second)
		lease.Detach()
		lease.Detach()
		resumed, err := locker.Resume(t.Context(), l, "k", lease.Token(), time.Minute)
		require.NoError(t, err)
		assert.NoError(t, resumed.Unlock(t.Context()))
		_, err = locker.Resume(t.Context(), l, "k", lease.Token(), time.Minute)
		assert.Error(t, err)
		assert.NoError(t, tryLock(t, l, time.Minute, locker.WithMinHold(time.Hour)).Unlock(t.Context()))
		assert.Equal(t, []string{"acquired k 0", "detached k 1", "acquired k 0", "unlocked k 0", "refused k 0 not held",
			"acquired k 0", "detached k 0"}, j.take())
	})
	bubble(t, "the context has the caller's values", func(t *testing.T) {
		j := &journal{}
		l := locker.Observed(memory.New(), j)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), journalKey{}, "v"))
		lease, err := locker.Lock(ctx, l, "k", 3*time.Second, locker.WithKeepAlive(), locker.WithMaxHold(2*time.Second))
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Minute)
		assert.Error(t, lease.Unlock(ctx))
		assert.Greater(t, len(j.values), 3)
		for _, v := range j.values {
			assert.Equal(t, "v", v)
		}
	})
	bubble(t, "an observer may use the lease", func(t *testing.T) {
		j := &journal{}
		j.use = func(ctx context.Context, _ locker.Event) {
			if lease := locker.FromContext(ctx); lease != nil {
				_ = lease.Err()
				lease.Lost()
			}
		}
		err := locker.Do(t.Context(), locker.Observed(&fake{}, j), "k", time.Second, func(ctx context.Context) error {
			lease := locker.FromContext(ctx)
			assert.NoError(t, lease.Extend(ctx, time.Second))
			time.Sleep(time.Minute)
			lease.Detach()
			return nil
		})
		assert.NoError(t, err)
		assert.Greater(t, len(j.events), 100)
	})
	bubble(t, "two observers, one lock", func(t *testing.T) {
		a, b := &journal{}, &journal{}
		bare := memory.New()
		l := locker.Observed(locker.Observed(bare, a), b)
		err := locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := locker.Lock(ctx, bare, "k", time.Second)
			assert.ErrorIs(t, err, locker.ErrDeadlock, "the observed Locker is the same")
			_, err = locker.LockAll(ctx, l, []string{"k"}, time.Second)
			assert.ErrorIs(t, err, locker.ErrDeadlock)
			return nil
		})
		assert.NoError(t, err)
		assert.Equal(t, []string{"acquired k 0", "unlocked k 0"}, a.take())
		assert.Equal(t, []string{"acquired k 0", "unlocked k 0"}, b.take())
	})
	bubble(t, "several locks", func(t *testing.T) {
		j := &journal{}
		l := locker.Observed(memory.New(), j)
		assert.NoError(t, locker.DoAll(t.Context(), l, []string{"b", "a"}, time.Second,
			func(context.Context) error { return nil }))
		assert.Equal(t, []string{"acquired a 0", "acquired b 0", "unlocked b 0", "unlocked a 0"}, j.take())
	})
}

// watching is a Locker without a queue.
type watching struct{ locker.Watcher }

func TestLogObserver(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	synctest.Test(t, func(t *testing.T) {
		l := locker.Observed(memory.New(), locker.LogObserver(logger))
		lease := tryLock(t, l, time.Second)
		time.Sleep(time.Minute)
		assert.Error(t, lease.Unlock(t.Context()))
	})
	assert.Equal(t, strings.Join([]string{
		`level=DEBUG msg="lock acquired" key=k took=0s`,
		`level=WARN msg="lock lost" key=k took=1s err="the lock is not held: its deadline passed"`,
		`level=WARN msg="lock unlock failed" key=k took=1m0s err="locker: unlock \"k\": the lock is not held: its deadline passed"`,
	}, "\n")+"\n", out.String())

	out.Reset()
	quiet := slog.New(slog.NewTextHandler(&out, nil))
	assert.NoError(t, tryLock(t, locker.Observed(memory.New(), locker.LogObserver(quiet)), time.Second).Unlock(t.Context()))
	assert.Empty(t, out.String())
	locker.LogObserver(nil).Observe(t.Context(), locker.Event{Kind: locker.Acquired, Key: "k"})
}

// An outage is a line at its begin, one a minute, and one at its end, however many locks there are.
func TestLogObserverInAnOutage(t *testing.T) {
	lines := func(t *testing.T, play func(t *testing.T, f *fake, l locker.Locker)) []string {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "key" || a.Key == "took" || a.Key == "err" || a.Key == "failures" {
				return slog.Attr{}
			}
			return a
		}}))
		f := &fake{}
		bubble(t, "", func(t *testing.T) { play(t, f, locker.Observed(f, locker.LogObserver(logger))) })
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	fails := func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }
	take := func(t *testing.T, l locker.Locker, n int, ttl time.Duration) (leases []*locker.Lease) {
		for i := range n {
			lease, err := locker.TryLock(t.Context(), l, fmt.Sprint(i), ttl, locker.WithKeepAlive())
			require.NoError(t, err)
			leases = append(leases, lease)
		}
		return leases
	}
	t.Run("that ends", func(t *testing.T) {
		assert.Equal(t, []string{
			`level=WARN msg="lock extend failed"`,
			`level=WARN msg="lock extensions still fail" since=1m0s`,
			`level=WARN msg="lock extensions still fail" since=2m0s`,
			`level=WARN msg="lock extensions no longer fail" since=2m30s`,
			`level=WARN msg="lock extend failed"`,
			`level=WARN msg="lock extensions no longer fail" since=10s`,
		}, lines(t, func(t *testing.T, f *fake, l locker.Locker) {
			direct := func(d time.Duration, f func(i int)) {
				for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second) {
					for i := range 100 {
						f(i)
					}
				}
			}
			extend := func(i int) { _, _ = l.Extend(t.Context(), fmt.Sprint(i), "t", time.Minute) }
			f.extendBy(fails)
			direct(150*time.Second, extend)
			f.extendBy(nil)
			direct(3*time.Second, func(i int) { _, _ = l.Acquire(t.Context(), fmt.Sprint(i), "t", time.Hour); extend(i) })
			f.extendBy(fails)
			direct(10*time.Second, extend)
			direct(time.Second, func(i int) { _, _ = l.Release(t.Context(), fmt.Sprint(i), "t") })
		}))
	})
	t.Run("in which leases are lost", func(t *testing.T) {
		got := lines(t, func(t *testing.T, f *fake, l locker.Locker) {
			take(t, l, 3, 30*time.Second)
			f.extendBy(fails)
			time.Sleep(time.Hour)
		})
		lost := `level=WARN msg="lock lost"`
		require.Len(t, got, 5)
		assert.Equal(t, []string{`level=WARN msg="lock extend failed"`, lost, lost, lost}, got[:4])
		assert.Contains(t, got[4], `msg="lock extensions no longer fail" since=`)
	})
	t.Run("of locks that nobody extends any more", func(t *testing.T) {
		got := lines(t, func(t *testing.T, f *fake, l locker.Locker) {
			lease := take(t, l, 1, time.Hour)[0]
			f.extendBy(fails)
			_, _ = l.Extend(t.Context(), "forgotten", "t", time.Minute)
			f.extendBy(nil)
			time.Sleep(5 * time.Minute)
			assert.NoError(t, lease.Extend(t.Context(), time.Hour))
			assert.NoError(t, lease.Unlock(t.Context()))
		})
		require.Len(t, got, 2)
		assert.Equal(t, `level=WARN msg="lock extensions no longer fail" since=5m0s`, got[1])
	})
}

// A failure long after those of an outage of which nobody has heard the end begins another one.
func TestLogObserverAfterAnOutage(t *testing.T) {
	var out bytes.Buffer
	o := locker.LogObserver(slog.New(slog.NewTextHandler(&out, nil)))
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			o.Observe(t.Context(), locker.Event{Kind: locker.ExtendFailed, Key: "k", Err: errBackend})
			time.Sleep(time.Hour)
		}
	})
	assert.Equal(t, 2, strings.Count(out.String(), "lock extend failed"))
}

// A lock that is held for longer than WithMaxHold allows is reported, once, while it is still held.
func TestOverdue(t *testing.T) {
	const ttl, maxHold = 3 * time.Second, 10 * time.Second
	count := func(t *testing.T, use func(l locker.Locker)) (overdue []time.Duration) {
		j := &journal{}
		use(locker.Observed(memory.New(), j))
		time.Sleep(time.Hour)
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, e := range j.events {
			if e.Kind == locker.Overdue {
				overdue = append(overdue, e.Took)
			}
		}
		return overdue
	}
	bubble(t, "a function that hangs", func(t *testing.T) {
		at := count(t, func(l locker.Locker) {
			err := locker.Do(t.Context(), l, "k", ttl, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}, locker.WithMaxHold(maxHold))
			assert.ErrorIs(t, err, locker.ErrNotHeld)
		})
		require.Len(t, at, 1)
		assert.GreaterOrEqual(t, at[0], maxHold)
		assert.LessOrEqual(t, at[0], maxHold+ttl/3)
	})
	bubble(t, "several locks, from when all are held", func(t *testing.T) {
		at := count(t, func(l locker.Locker) {
			leases, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, ttl, locker.WithKeepAlive(), locker.WithMaxHold(maxHold))
			require.NoError(t, err)
			for range 20 { // the caller extends them itself
				time.Sleep(time.Second)
				assert.NoError(t, leases[0].Extend(t.Context(), ttl))
			}
			time.Sleep(time.Minute)
			assert.Error(t, leases.Unlock(t.Context()))
		})
		assert.Len(t, at, 2)
	})
	bubble(t, "one that ends in time, has no limit, or is lost", func(t *testing.T) {
		assert.Empty(t, count(t, func(l locker.Locker) {
			lease := tryLock(t, l, ttl, locker.WithKeepAlive(), locker.WithMaxHold(maxHold))
			time.Sleep(maxHold - time.Second)
			assert.NoError(t, lease.Unlock(t.Context()))
			lease = tryLock(t, l, ttl, locker.WithKeepAlive())
			time.Sleep(time.Minute)
			assert.NoError(t, lease.Unlock(t.Context()))
			leases, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, ttl, locker.WithMaxHold(maxHold))
			require.NoError(t, err)
			for range 20 { // without a keep-alive
				time.Sleep(time.Second)
				assert.NoError(t, errors.Join(leases[0].Extend(t.Context(), ttl), leases[1].Extend(t.Context(), ttl)))
			}
			assert.NoError(t, leases.Unlock(t.Context()))
		}))
	})
}

// A cleanup that ends uncertain, or never begins, is reported.
func TestNotCleanedUp(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		j := &journal{}
		f := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }}
		f.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
		l := locker.Observed(f, j)
		for range undo.MaxPerOwner + 1 {
			_, err := locker.TryLock(t.Context(), l, "k", time.Hour)
			require.ErrorIs(t, err, errBackend)
		}
		assert.Len(t, j.errs(locker.NotCleanedUp), 1, "the one that is too much")
		time.Sleep(time.Hour)
		assert.Len(t, j.errs(locker.NotCleanedUp), undo.MaxPerOwner+1)
	})
}

// An Observer that panics takes no event from others, and each lease that was counted is counted
// again when there is none.
func TestObserverPanics(t *testing.T) {
	for kind, use := range map[locker.EventKind]func(t *testing.T, f *fake, l locker.Locker){
		locker.Acquired: func(t *testing.T, f *fake, l locker.Locker) {
			_, _ = locker.TryLock(t.Context(), l, "k", time.Minute)
			assert.True(t, f.isFree("k"))
		},
		locker.Extended: func(t *testing.T, f *fake, l locker.Locker) {
			_, _ = f.doAcquire(t.Context(), "k", "t", time.Minute)
			lease, err := locker.Resume(t.Context(), l, "k", "t", time.Minute)
			require.NoError(t, err)
			defer lease.Detach()
			_ = lease.Extend(t.Context(), time.Minute)
		},
		locker.Unlocked: func(t *testing.T, _ *fake, l locker.Locker) {
			_ = locker.Do(t.Context(), l, "k", time.Minute, func(context.Context) error { return nil })
		},
		locker.Waiting: func(t *testing.T, f *fake, l locker.Locker) {
			_, _ = f.doAcquire(t.Context(), "k", "t", time.Second)
			_, _ = locker.Lock(t.Context(), l, "k", time.Minute)
		},
	} {
		bubble(t, kind.String(), func(t *testing.T) {
			counts, around, f := &tally{}, &tally{}, &fake{}
			panics := &journal{use: func(_ context.Context, e locker.Event) {
				if e.Kind == kind {
					panic("boom")
				}
			}}
			l := locker.Observed(locker.Observed(locker.Observed(f, around), panics), counts)
			func() {
				defer func() { assert.Equal(t, "boom", recover()) }()
				use(t, f, l)
			}()
			time.Sleep(time.Hour)
			assert.Zero(t, counts.now())
			assert.Zero(t, around.now())
		})
	}
	bubble(t, "on a resumed lock", func(t *testing.T) {
		counts, f := &tally{}, &fake{}
		panics := &journal{use: func(_ context.Context, e locker.Event) {
			if e.Kind == locker.Acquired {
				panic("boom")
			}
		}}
		_, _ = f.doAcquire(t.Context(), "k", "t", time.Hour)
		l := locker.Observed(locker.Observed(f, counts), panics)
		assert.Panics(t, func() { _, _ = locker.Resume(t.Context(), l, "k", "t", time.Hour) })
		assert.Zero(t, counts.now())
		assert.True(t, f.isHeld("k", "t"), "the lock of another process")
	})
}

func TestEventKindString(t *testing.T) {
	seen := map[string]bool{}
	for kind := locker.Waiting; kind <= locker.Overdue; kind++ {
		assert.NotEmpty(t, kind.String())
		assert.False(t, seen[kind.String()])
		seen[kind.String()] = true
	}
	assert.Len(t, seen, 13)
	assert.Equal(t, "unknown", locker.EventKind(0).String())
	assert.Equal(t, "unknown", (locker.Overdue + 1).String())
}
