package conformance

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/semaphore"
)

// semaphoreMutant is a semaphore with one mistake, the checks that must find it, and those in may that
// are also right to. Those of waiting are skipped if it has no Wait.
type semaphoreMutant struct {
	permits   func() func(l locker.Locker, n int) locker.Locker
	network   bool // only a network shows the mistake, and only must is run
	must, may []string
}

// altered is a correct semaphore, some methods of which can be replaced.
type altered struct {
	*semaphore.Locker
	inner     locker.Locker
	onAcquire func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	onExtend  func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	onRelease func(ctx context.Context, key, token string) (bool, error)
	onWait    func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)
	onFence   func(ctx context.Context, key, token string) (uint64, bool, error)
}

func (a *altered) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return a.onAcquire(ctx, key, token, ttl)
}

func (a *altered) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return a.onExtend(ctx, key, token, ttl)
}

func (a *altered) Release(ctx context.Context, key, token string) (bool, error) {
	return a.onRelease(ctx, key, token)
}

func (a *altered) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return a.onWait(ctx, key, token, ttl)
}

func (a *altered) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	return a.onFence(ctx, key, token)
}

// alter returns the constructor of semaphores that alter breaks.
func alter(alter func(a *altered, n int)) func() func(locker.Locker, int) locker.Locker {
	return func() func(locker.Locker, int) locker.Locker {
		return func(l locker.Locker, n int) locker.Locker {
			s := semaphore.NewLocker(l, n)
			a := &altered{s, l, s.Acquire, s.Extend, s.Release, s.Wait, s.Fence}
			alter(a, n)
			return a
		}
	}
}

// counting returns the constructor of semaphores that count n differently.
func counting(count func(n int) int) func() func(locker.Locker, int) locker.Locker {
	return func() func(locker.Locker, int) locker.Locker {
		return func(l locker.Locker, n int) locker.Locker { return semaphore.NewLocker(l, count(n)) }
	}
}

var mutantSeed = maphash.MakeSeed()

// polling returns a Wait that makes attempts, and has no queue.
func polling(acquire func(ctx context.Context, key, token string, ttl time.Duration) (bool, error),
) func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		for {
			start := time.Now()
			switch acquired, err := acquire(ctx, key, token, ttl); {
			case err != nil:
				return time.Time{}, err
			case acquired:
				return start.Add(ttl), nil
			}
			select {
			case <-time.After(time.Duration(1+maphash.String(mutantSeed, token)%20) * time.Millisecond):
			case <-ctx.Done():
				return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
			}
		}
	}
}

var semaphoreMutants = map[string]semaphoreMutant{
	"one too many": {
		permits: counting(func(n int) int { return n + 1 }),
		must:    []string{"permits/count"}, may: []string{"*"},
	},
	"one too few": {
		permits: counting(func(n int) int { return n - 1 }),
		must:    []string{"permits/count"}, may: []string{"*"},
	},
	"a lock, not several": {
		permits: counting(func(int) int { return 1 }),
		must:    []string{"permits/count", "permits-wait/all-used"}, may: []string{"*"},
	},
	"only one permit is tried": {
		permits: alter(func(a *altered, n int) {
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				return a.inner.Acquire(ctx, fmt.Sprintf("%s/%d", key, 1+maphash.String(mutantSeed, token)%uint64(n)), token, ttl)
			}
		}),
		must: []string{"permits/count"}, may: []string{"*"},
	},
	"names with N": {
		permits: alter(func(a *altered, n int) {
			acquire, extend, release, wait, fence := a.onAcquire, a.onExtend, a.onRelease, a.onWait, a.onFence
			named := func(key string) string { return fmt.Sprintf("%s of %d", key, n) }
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				return acquire(ctx, named(key), token, ttl)
			}
			a.onExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				return extend(ctx, named(key), token, ttl)
			}
			a.onRelease = func(ctx context.Context, key, token string) (bool, error) { return release(ctx, named(key), token) }
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				return wait(ctx, named(key), token, ttl)
			}
			a.onFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				return fence(ctx, named(key), token)
			}
		}),
		must: []string{"permits/resize", "permits-wait/resize"},
	},
	"a token has two permits": {
		permits: alter(func(a *altered, n int) {
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				for i := range n {
					permit := fmt.Sprintf("%s/%d", key, i+1)
					if extended, err := a.inner.Extend(ctx, permit, token, ttl); extended || err != nil {
						continue // it looks for another one
					}
					if acquired, err := a.inner.Acquire(ctx, permit, token, ttl); acquired || err != nil {
						return acquired, err
					}
				}
				return false, nil
			}
		}),
		must: []string{"permits/same-token"},
		may:  []string{"permits/context"},
	},
	"anyone's release": {
		permits: alter(func(a *altered, n int) {
			release := a.onRelease
			a.onRelease = func(ctx context.Context, key, token string) (bool, error) {
				if released, err := release(ctx, key, token); released || err != nil {
					return released, err
				}
				_, err := locker.Break(ctx, a.inner, key+"/1")
				return false, err
			}
		}),
		must: []string{"permits/owner"}, may: []string{"*"},
	},
	"a permit of this process only": {
		permits: alter(func(a *altered, n int) {
			extend := a.onExtend
			a.onExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if a.Permit(key, token) == 0 {
					return false, ctx.Err()
				}
				return extend(ctx, key, token, ttl)
			}
		}),
		must: []string{"permits/owner"},
	},
	"no expiry": {
		permits: alter(func(a *altered, _ int) {
			acquire := a.onAcquire
			a.onAcquire = func(ctx context.Context, key, token string, _ time.Duration) (bool, error) {
				return acquire(ctx, key, token, time.Hour)
			}
		}),
		must: []string{"permits/expiry", "permits/extend", "permits-wait/expiry"},
	},
	"ends early": {
		permits: alter(func(a *altered, _ int) {
			acquire := a.onAcquire
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				return acquire(ctx, key, token, ttl/2)
			}
		}),
		must: []string{"permits/expiry"},
		may:  []string{"permits/extend", "permits-wait/expiry"},
	},
	"numbers begin again": {
		permits: alter(func(a *altered, _ int) {
			a.onFence = func(context.Context, string, string) (uint64, bool, error) { return 7, true, nil }
		}),
		must: []string{"permits/fence"},
	},
	"contexts are ignored": {
		permits: alter(func(a *altered, _ int) {
			acquire := a.onAcquire
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				return acquire(context.WithoutCancel(ctx), key, token, ttl)
			}
		}),
		must: []string{"permits/context"},
	},

	"a race for what is free": {
		permits: alter(func(a *altered, _ int) { a.onWait = polling(a.onAcquire) }),
		must:    []string{"permits-wait/fifo"},
		may:     []string{"permits-wait/*"},
	},
	"a queue for each permit": {
		permits: alter(func(a *altered, n int) {
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				start := time.Now()
				if acquired, err := a.onAcquire(ctx, key, token, ttl); acquired || err != nil {
					return start.Add(ttl), err
				}
				return a.inner.(locker.Waiter).Wait(ctx, key+"/1", token, ttl)
			}
		}),
		must: []string{"permits-wait/any-permit"},
		may:  []string{"permits-wait/*"},
	},
	"a waiter believes that it has the first permit": {
		permits: alter(func(a *altered, n int) {
			var mu sync.Mutex
			waited := make(map[string]bool)
			wait, fence := a.onWait, a.onFence
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline, err := wait(ctx, key, token, ttl)
				mu.Lock()
				defer mu.Unlock()
				waited[token] = err == nil
				return deadline, err
			}
			a.onFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				mu.Lock()
				isFirst := waited[token]
				mu.Unlock()
				if isFirst {
					return a.inner.(locker.Fencer).Fence(ctx, key+"/1", token)
				}
				return fence(ctx, key, token)
			}
		}),
		must: []string{"permits-wait/any-permit"},
	},
	"a waiter gets a permit beyond its own": {
		permits: alter(func(a *altered, n int) {
			wait := a.onWait
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				beyond, cancel := context.WithCancel(ctx)
				defer cancel()
				// It queues before that permit is released, or a waiter with a larger N may be first.
				var also sync.WaitGroup
				also.Go(func() { _, _ = a.inner.(locker.Waiter).Wait(beyond, fmt.Sprintf("%s/%d", key, n+2), token, ttl) })
				deadline, err := wait(ctx, key, token, ttl)
				if err != nil {
					cancel()
				}
				also.Wait()
				return deadline, err
			}
		}),
		must: []string{"permits-wait/resize"},
		may:  []string{"permits-wait/*"},
	},
	"waiters stay": {
		permits: alter(func(a *altered, _ int) {
			wait := a.onWait
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				type result struct {
					deadline time.Time
					err      error
				}
				done := make(chan result, 1)
				// Longer than any check looks, but not until the tests end.
				stay, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				go func() {
					defer cancel()
					deadline, err := wait(stay, key, token, ttl)
					done <- result{deadline, err}
				}()
				select {
				case r := <-done:
					return r.deadline, r.err
				case <-ctx.Done():
					return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
				}
			}
		}),
		must: []string{"permits-wait/cancel", "permits-wait/cancel-stress"},
	},
	"one waiter at a time": {
		permits: alter(func(a *altered, _ int) {
			wait, release := a.onWait, a.onRelease
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				if _, err := a.inner.(locker.Waiter).Wait(ctx, key+"/first", token, ttl); err != nil {
					return time.Time{}, err
				}
				return wait(ctx, key, token, ttl)
			}
			a.onRelease = func(ctx context.Context, key, token string) (bool, error) {
				_, _ = a.inner.Release(ctx, key+"/first", token)
				return release(ctx, key, token)
			}
		}),
		must: []string{"permits-wait/all-used"},
		may:  []string{"permits-wait/*"},
	},
	"counts, then adds": {
		permits: counters(true, false),
		must:    []string{"permits/race"}, may: []string{"permits/same-token"},
	},
	"one expiry for all": {
		permits: counters(false, true),
		must:    []string{"permits/extend"},
		may:     []string{"permits/expiry"},
	},

	"what got no answer did not happen": {
		network: true,
		permits: alter(func(a *altered, _ int) {
			var mu sync.Mutex
			failed := make(map[string]bool)
			acquire, release := a.onAcquire, a.onRelease
			note := func(token string, err error) {
				mu.Lock()
				defer mu.Unlock()
				failed[token] = err != nil
			}
			a.onAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				acquired, err := acquire(ctx, key, token, ttl)
				note(token, err)
				return acquired, err
			}
			a.onRelease = func(ctx context.Context, key, token string) (bool, error) {
				mu.Lock()
				skip := failed[token]
				mu.Unlock()
				if skip {
					return false, nil
				}
				return release(ctx, key, token)
			}
		}),
		must: []string{"permits-fault/acquire"},
	},
	"a turn that an error does not end": {
		network: true,
		permits: alter(func(a *altered, _ int) {
			// A Wait of redisv9 would leave nothing behind after an error.
			turn, wait := polling(a.inner.Acquire), a.onWait
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				if _, err := turn(ctx, key+"/first", token, 10*time.Minute); err != nil {
					return time.Time{}, err
				}
				deadline, err := wait(ctx, key, token, ttl)
				if err == nil {
					_, err = a.inner.Release(ctx, key+"/first", token)
				}
				return deadline, err
			}
		}),
		must: []string{"permits-fault/wait", "permits-fault/storm"},
	},
	"no answer is a no": {
		network: true,
		permits: alter(func(a *altered, _ int) {
			release := a.onRelease
			a.onRelease = func(ctx context.Context, key, token string) (bool, error) {
				released, err := release(ctx, key, token)
				if err != nil && ctx.Err() == nil {
					return false, nil
				}
				return released, err
			}
		}),
		must: []string{"permits-fault/release"},
	},
	"the dead are waited for": {
		network: true,
		permits: alter(func(a *altered, _ int) {
			wait := a.onWait
			a.onWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				if err := locker.Do(ctx, a.inner, key+"/first", 10*time.Minute, func(ctx context.Context) (err error) {
					_, err = wait(ctx, key, token, ttl)
					return err
				}); err != nil {
					return time.Time{}, errors.Unwrap(err)
				}
				return time.Now().Add(ttl), nil
			}
		}),
		must: []string{"permits-fault/waiter-dies"},
	},
}

// counter keeps holders by itself, in memory, as the semaphores of articles do.
type counter struct {
	mu       sync.Mutex
	holders  map[string]map[string]time.Time // by key and token, when they end
	racy     bool                            // looks and adds in two steps
	together bool                            // each holder renews the expiry of all
}

// counters returns the constructor of semaphores that share a counter.
func counters(racy, together bool) func() func(locker.Locker, int) locker.Locker {
	return func() func(locker.Locker, int) locker.Locker {
		s := &counter{holders: make(map[string]map[string]time.Time), racy: racy, together: together}
		return func(_ locker.Locker, n int) locker.Locker { return counted{s, n} }
	}
}

// of returns the holders of key that have not expired.
func (s *counter) of(key string) map[string]time.Time {
	if s.holders[key] == nil {
		s.holders[key] = make(map[string]time.Time)
	}
	for token, end := range s.holders[key] {
		if time.Now().After(end) {
			delete(s.holders[key], token)
		}
	}
	return s.holders[key]
}

func (s *counter) set(key, token string, ttl time.Duration) {
	holders := s.of(key)
	holders[token] = time.Now().Add(ttl)
	if s.together {
		for other := range holders {
			holders[other] = holders[token]
		}
	}
}

type counted struct {
	*counter
	n int
}

func (c counted) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	holders := c.of(key)
	if _, has := holders[token]; !has && len(holders) >= c.n {
		return false, nil
	}
	if c.racy {
		c.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
		c.mu.Lock()
	}
	c.set(key, token, ttl)
	return true, nil
}

func (c counted) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, has := c.of(key)[token]; !has || ctx.Err() != nil {
		return false, ctx.Err()
	}
	c.set(key, token, ttl)
	return true, nil
}

func (c counted) Release(ctx context.Context, key, token string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, has := c.of(key)[token]; !has || ctx.Err() != nil {
		return false, ctx.Err()
	}
	delete(c.of(key), token)
	return true, nil
}

// config returns the configuration of a mutant.
func (m semaphoreMutant) config(t *testing.T) SemaphoreConfig {
	t.Helper()
	c := semaphoreFakes()
	if m.network {
		c = semaphoreOnRedis(t)
	}
	c.Permits = m.permits()
	return c
}
