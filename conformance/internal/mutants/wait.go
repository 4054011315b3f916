package mutants

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// Waits makes do the Wait of f, unless ctx has ended before the call.
func (f *Fake) Waits(do func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)) {
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		return do(ctx, key, token, ttl)
	}
}

// queued returns the waiter of token, if it is in the queue.
func (f *Fake) queued(key, token string) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.queues[key] {
		if w.token == token {
			return w
		}
	}
	return nil
}

func waitMutants() []Mutant {
	return []Mutant{
		{Name: "last come, first served",
			Must:  []string{"wait/fifo", "wait/keeps-place"},
			May:   []string{"wait/cancel-stress", "wait/own-ttl"},
			Alter: func(f *Fake) { f.lastFirst = true }},
		{Name: "a canceled waiter stays in the queue",
			Must:  []string{"wait/cancel", "wait/head-leaves"},
			May:   []string{"wait/cancel-stress"},
			Alter: func(f *Fake) { f.staysQueued = true }},
		{Name: "a grant to a waiter that leaves is lost",
			Must:  []string{"wait/cancel-stress"},
			May:   []string{"wait/cancel"},
			Alter: func(f *Fake) { f.losesGrants = true }},
		{Name: "a waiter that leaves removes another's place",
			Must:  []string{"wait/cancel-stress"},
			May:   []string{"wait/cancel", "wait/head-leaves"},
			Alter: func(f *Fake) { f.drops = true }},
		{Name: "the queue moves only by releases",
			Must:  []string{"wait/holder-vanishes"},
			May:   []string{"wait/deadline", "wait/head-leaves", "wait/keeps-place", "wait/own-ttl"},
			Alter: func(f *Fake) { f.onlyReleases = true }},
		{Name: "the head of the queue watches for the expiry, and leaves without a successor",
			Only:  []string{"wait/*"},
			Must:  []string{"wait/head-leaves"},
			May:   []string{"wait/cancel-stress", "wait/cancel"},
			Alter: func(f *Fake) { f.firstWatches = true }},
		{Name: "acquire overtakes the queue",
			Must:  []string{"wait/no-barging"},
			May:   []string{"wait/keeps-place", "wait/own-ttl", "wait/queued-token"},
			Alter: func(f *Fake) { f.gap = true }},
		{Name: "a release wakes all, and they race",
			Must:  []string{"wait/fifo"},
			May:   []string{"wait/no-barging", "wait/keeps-place", "wait/own-ttl", "wait/queued-token"},
			Alter: func(f *Fake) { f.races = true }},
		{Name: "a waiter's place moves to the end when the holder vanishes",
			Only:  []string{"wait/*"},
			Must:  []string{"wait/keeps-place"},
			May:   []string{"wait/own-ttl"},
			Alter: func(f *Fake) { f.rotates = func(why string) bool { return why == "vanished" } }},
		{Name: "a waiter's place moves to the end when the holder extends",
			Only:  []string{"wait/*"},
			Must:  []string{"wait/keeps-place"},
			Alter: func(f *Fake) { f.rotates = func(why string) bool { return why == "extended" } }},
		{Name: "a waiter's place moves to the end when another is refused",
			Only:  []string{"wait/*"},
			Must:  []string{"wait/keeps-place"},
			May:   []string{"wait/own-ttl", "wait/fifo"},
			Alter: func(f *Fake) { f.rotates = func(why string) bool { return why == "refused" } }},
		{Name: "after the holder vanished, the first waiter to look has the lock",
			Only: []string{"wait/*"},
			Must: []string{"wait/keeps-place"},
			May:  []string{"wait/own-ttl"},
			Alter: func(f *Fake) {
				f.next = func(vanished bool, queue []*waiter) *waiter {
					if vanished {
						return queue[rand.IntN(len(queue))]
					}
					return queue[0]
				}
			}},
		{Name: "after the holder vanished, last come, first served",
			Only: []string{"wait/*"},
			Must: []string{"wait/keeps-place"},
			May:  []string{"wait/own-ttl"},
			Alter: func(f *Fake) {
				f.next = func(vanished bool, queue []*waiter) *waiter {
					if vanished {
						return queue[len(queue)-1]
					}
					return queue[0]
				}
			}},
		{Name: "a grant with the ttl of another waiter",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl"},
			May:  []string{"wait/cancel-stress"},
			Alter: func(f *Fake) {
				f.grants = func(_ time.Duration, _ *waiter, queue []*waiter) time.Duration { return queue[len(queue)-1].ttl }
			}},
		{Name: "a grant with the ttl of the previous holder",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl"},
			May:  []string{"wait/*"},
			Alter: func(f *Fake) {
				f.grants = func(held time.Duration, _ *waiter, _ []*waiter) time.Duration { return held }
			}},
		{Name: "a grant with the ttl of the adapter",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl", "wait/deadline"},
			May:  []string{"wait/*"},
			Alter: func(f *Fake) {
				f.grants = func(time.Duration, *waiter, []*waiter) time.Duration { return time.Second }
			}},
		{Name: "a short grant, and a deadline to match",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl"},
			May:  []string{"wait/*"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					if _, held := f.get(key); held {
						ttl = min(ttl, time.Second)
					}
					return f.store.wait(ctx, key, token, ttl)
				})
			}},
		{Name: "a token in the queue can extend",
			Only: []string{"wait/*"},
			Must: []string{"wait/queued-token"},
			Alter: func(f *Fake) {
				f.extends(func(key, token string, ttl time.Duration) bool {
					return f.store.extend(key, token, ttl) || f.queued(key, token) != nil
				})
			}},
		{Name: "a release removes its token from the queue",
			Only: []string{"wait/*"},
			Must: []string{"wait/queued-token"},
			Alter: func(f *Fake) {
				f.Releases(func(key, token string) bool {
					if w := f.queued(key, token); w != nil {
						f.mu.Lock()
						defer f.mu.Unlock()
						f.leave(key, w)
						return false
					}
					return f.store.release(key, token)
				})
			}},
		{
			Name: "wait by set, and release by delete, whatever is there",
			Must: []string{"wait/cancel-stress", "wait/uncontended"},
			May:  []string{"*"},
			Alter: func(f *Fake) {
				f.Waits(func(_ context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					deadline := time.Now().Add(ttl)
					f.set(key, token, ttl)
					return deadline, nil
				})
				f.Releases(func(key, _ string) bool { f.Del(key); return true })
			},
		}, {
			Name: "a waiter that trusts the holder's ttl as it was when it joined",
			Must: []string{"wait/holder-vanishes"},
			May:  []string{"wait/keeps-place", "wait/own-ttl"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					it, ok := f.get(key)
					if !ok {
						return f.store.wait(ctx, key, token, ttl)
					}
					due, cancel := context.WithDeadline(ctx, it.expires)
					defer cancel()
					deadline, err := f.store.wait(due, key, token, ttl)
					if err != nil && ctx.Err() == nil {
						deadline, err = time.Now().Add(ttl), nil
						f.set(key, token, ttl)
					}
					return deadline, err
				})
			},
		}, {
			Name: "the deadline counts from when the news arrived",
			Must: []string{"wait/deadline"},
			May:  []string{"wait/own-ttl", "wait/keeps-place"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					_, err := f.store.wait(ctx, key, token, ttl)
					if err == nil {
						time.Sleep(300 * time.Millisecond)
					}
					return time.Now().Add(ttl), err
				})
			},
		}, {
			Name: "the deadline counts from the joining",
			Must: []string{"wait/deadline", "wait/own-ttl"},
			May:  []string{"wait/keeps-place"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					deadline := time.Now().Add(ttl)
					_, err := f.store.wait(ctx, key, token, ttl)
					return deadline, err
				})
			},
		}, {
			Name: "the error of a waiter that leaves does not wrap ErrHeld",
			Must: []string{"wait/cancel"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					deadline, err := f.store.wait(ctx, key, token, ttl)
					if err != nil {
						err = ctx.Err()
					}
					return deadline, err
				})
			},
		}, {
			Name: "the error of a waiter that leaves does not wrap ctx's error",
			Must: []string{"wait/cancel"},
			May:  []string{"wait/cancel-stress"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					deadline, err := f.store.wait(ctx, key, token, ttl)
					if err != nil {
						err = locker.ErrHeld
					}
					return deadline, err
				})
			},
		}, {
			Name: "wait ignores a ctx that has ended",
			Must: []string{"wait/context"},
			Alter: func(f *Fake) {
				f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					return f.store.wait(ctx, key, token, ttl)
				}
			},
		}, {
			Name: "a waiter's goroutine outlives it",
			Must: []string{"wait/context"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					go time.Sleep(min(ttl, time.Minute))
					return f.store.wait(ctx, key, token, ttl)
				})
			},
		}, {
			Name: "a token waits for itself",
			Must: []string{"wait/uncontended"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					for {
						it, ok := f.get(key)
						if !ok || it.token != token {
							return f.store.wait(ctx, key, token, ttl)
						}
						select {
						case <-time.After(time.Until(it.expires)):
						case <-ctx.Done():
							return time.Time{}, fmt.Errorf("%w (%w)", ctx.Err(), locker.ErrHeld)
						}
					}
				})
			},
		}, {
			Name: "a wait that is not supported gives up its place later",
			Must: []string{"wait/unsupported"},
			Alter: func(f *Fake) {
				f.Waits(func(_ context.Context, key, token string, _ time.Duration) (time.Time, error) {
					time.AfterFunc(2*time.Millisecond, func() { f.store.release(key, token) })
					return time.Time{}, errors.ErrUnsupported
				})
			},
		}, {
			Name: "wait locks a name and returns ErrUnsupported",
			Must: []string{"wait/any-key"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					deadline, err := f.store.wait(ctx, key, token, ttl)
					if strings.ContainsAny(key, "{}") && err == nil {
						return time.Time{}, errors.ErrUnsupported
					}
					return deadline, err
				})
			},
		}, {
			Name: "the queue's key does not work for every name",
			Must: []string{"wait/any-key"},
			Alter: func(f *Fake) {
				f.Waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
					if strings.ContainsAny(key, "{}") {
						return time.Time{}, fmt.Errorf("CROSSSLOT Keys in request don't hash to the same slot")
					}
					return f.store.wait(ctx, key, token, ttl)
				})
			},
		},
	}
}
