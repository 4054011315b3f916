package mutants

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// watches makes do the Watch of f, with correct handling of ctx.
func (f *Fake) watches(do func(ctx context.Context, key string) <-chan struct{}) {
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return do(ctx, key), nil
	}
}

// relays makes between forward the wake-ups of a correct Watch to a channel with room for some.
func (f *Fake) relays(room int, between func(ctx context.Context, from <-chan struct{}, to chan struct{})) {
	f.watches(func(ctx context.Context, key string) <-chan struct{} {
		from, to := f.store.watch(ctx, f, key), make(chan struct{}, room)
		go between(ctx, from, to)
		return to
	})
}

func watchMutants() []Mutant {
	return []Mutant{{
		Name: "watch subscribes after it has returned",
		Must: []string{"watch/no-missed-release"},
		May:  []string{"watch/*"},
		Alter: func(f *Fake) {
			f.watches(func(ctx context.Context, key string) <-chan struct{} {
				to := make(chan struct{}, 1)
				go func() {
					time.Sleep(2 * time.Millisecond)
					from := f.store.watch(ctx, f, key)
					for {
						select {
						case <-from:
							poke(to)
						case <-ctx.Done():
							return
						}
					}
				}()
				return to
			})
		},
	}, {
		Name: "watch begins one revision late",
		Must: []string{"watch/first-release"},
		May:  []string{"watch/*"},
		Only: []string{"watch/*", "release/*"},
		Alter: func(f *Fake) {
			f.watches(func(ctx context.Context, key string) <-chan struct{} {
				ch := f.store.watch(ctx, f, key)
				f.mu.Lock()
				defer f.mu.Unlock()
				for _, w := range f.watchers {
					if w.ch == ch {
						w.from = f.revision + 2
					}
				}
				return ch
			})
		},
	}, {
		Name: "wake-up before the key is free",
		Must: []string{"watch/no-missed-release"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				if it, ok := f.get(key); !ok || it.token != token {
					return false
				}
				f.mu.Lock()
				f.wake(key)
				f.mu.Unlock()
				time.Sleep(2 * time.Millisecond)
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.live(key); !ok || it.token != token {
					return false
				}
				delete(f.items, key)
				f.advance(key)
				return true
			})
		},
	}, {
		Name: "one watcher a key",
		Must: []string{"watch/wakes-all"},
		May:  []string{"watch/handoff"},
		Alter: func(f *Fake) {
			f.watches(func(ctx context.Context, key string) <-chan struct{} {
				f.mu.Lock()
				for _, w := range f.watchers {
					if w.key == key && w.owner == f {
						w.key = ""
					}
				}
				f.mu.Unlock()
				return f.store.watch(ctx, f, key)
			})
		},
	}, {
		Name: "a watcher that leaves removes the others of its key",
		Must: []string{"watch/wakes-all"},
		May:  []string{"watch/no-missed-release"},
		Alter: func(f *Fake) {
			f.watches(func(ctx context.Context, key string) <-chan struct{} {
				context.AfterFunc(ctx, func() {
					f.mu.Lock()
					defer f.mu.Unlock()
					for _, w := range f.watchers {
						if w.key == key && w.owner == f {
							w.key = ""
						}
					}
				})
				return f.store.watch(ctx, f, key)
			})
		},
	}, {
		Name: "only the first release wakes",
		Must: []string{"watch/every-release", "watch/handoff", "watch/wakes-all", "watch/only-its-key"},
		Alter: func(f *Fake) {
			f.relays(1, func(ctx context.Context, from <-chan struct{}, to chan struct{}) {
				select {
				case <-from:
					poke(to)
				case <-ctx.Done():
				}
			})
		},
	}, {
		Name: "only its own releases wake",
		Must: []string{"watch/every-release", "watch/wakes-all"},
		May:  []string{"watch/*"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.live(key); !ok || it.token != token {
					return false
				}
				delete(f.items, key)
				f.advance(key)
				for _, w := range f.watchers {
					if w.key == key && w.owner == f {
						poke(w.ch)
					}
				}
				return true
			})
		},
	}, {
		Name: "a handoff wakes no watcher",
		Only: []string{"watch/*", "wait/*"},
		Must: []string{"watch/handoff"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.live(key); !ok || it.token != token {
					return false
				}
				queued := len(f.queues[key]) > 0
				delete(f.items, key)
				f.advance(key)
				if !queued {
					f.wake(key)
				}
				return true
			})
		},
	}, {
		Name: "a slow watcher blocks the others",
		Must: []string{"watch/every-release"},
		May:  []string{"watch/no-missed-release", "watch/wakes-all"},
		Alter: func(f *Fake) {
			// One goroutine for a key, as one subscription may have, which waits until each has read.
			type hub struct{ to []chan struct{} }
			var mu sync.Mutex
			hubs := make(map[string]*hub)
			f.watches(func(ctx context.Context, key string) <-chan struct{} {
				to := make(chan struct{}, 1)
				mu.Lock()
				defer mu.Unlock()
				h := hubs[key]
				if h == nil {
					h = &hub{}
					hubs[key] = h
					from := f.store.watch(ctx, f, key)
					go func() {
						for {
							select {
							case <-from:
							case <-ctx.Done():
								mu.Lock()
								delete(hubs, key)
								mu.Unlock()
								return
							}
							mu.Lock()
							all := h.to
							mu.Unlock()
							for _, to := range all {
								select {
								case to <- struct{}{}:
								case <-ctx.Done():
								}
							}
						}
					}()
				}
				h.to = append(h.to, to)
				return to
			})
		},
	}, {
		Name: "one signal for all keys",
		Must: []string{"watch/only-its-key"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				ok := f.store.release(key, token)
				if ok {
					f.mu.Lock()
					defer f.mu.Unlock()
					for _, w := range f.watchers {
						poke(w.ch)
					}
				}
				return ok
			})
		},
	}, {
		Name: "the watched name is a pattern",
		Must: []string{"watch/any-key"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.live(key); !ok || it.token != token {
					return false
				}
				delete(f.items, key)
				f.advance(key)
				for _, w := range f.watchers {
					if ok, _ := path.Match(w.key, key); ok {
						poke(w.ch)
					}
				}
				return true
			})
		},
	}, {
		Name: "the channel is closed when ctx ends",
		Must: []string{"watch/channel"},
		Alter: func(f *Fake) {
			f.relays(1, func(ctx context.Context, from <-chan struct{}, to chan struct{}) {
				for {
					select {
					case <-from:
						poke(to)
					case <-ctx.Done():
						close(to)
						return
					}
				}
			})
		},
	}, {
		Name: "the channel has room for ten",
		Must: []string{"watch/channel"},
		Alter: func(f *Fake) {
			f.relays(10, func(ctx context.Context, from <-chan struct{}, to chan struct{}) {
				for {
					select {
					case <-from:
						poke(to)
					case <-ctx.Done():
						return
					}
				}
			})
		},
	}, {
		Name: "a goroutine for each watcher that does not end",
		Must: []string{"watch/ends-with-context"},
		Alter: func(f *Fake) {
			f.relays(1, func(_ context.Context, from <-chan struct{}, to chan struct{}) {
				for end := time.After(time.Minute); ; {
					select {
					case <-from:
						poke(to)
					case <-end:
						return
					}
				}
			})
		},
	}, {
		Name: "watch ignores ctx",
		Must: []string{"watch/ends-with-context"},
		Alter: func(f *Fake) {
			f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) { return f.store.watch(ctx, f, key), nil }
		},
	}}
}

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
		{Name: "a cancelled waiter stays in the queue",
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

func fenceMutants() []Mutant {
	return []Mutant{{
		Name: "fence without the owner check",
		Must: []string{"fence/holder-only"},
		May:  []string{"fence/stale-holder", "wait/queued-token"},
		Alter: func(f *Fake) {
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				n, _ := f.store.fence(key, token)
				return n, ctx.Err() == nil, ctx.Err()
			}
		},
	}, {
		Name: "fence checks the owner, then increments",
		Must: []string{"fence/stale-holder"},
		Alter: func(f *Fake) {
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				if it, ok := f.get(key); !ok || it.token != token || ctx.Err() != nil {
					return 0, false, ctx.Err()
				}
				time.Sleep(rand.N(4 * time.Millisecond))
				n, _ := f.store.fence(key, token)
				return n, true, nil
			}
		},
	}, {
		Name: "fence numbers use the highest of 64 bits",
		Only: []string{"fence/*", "names/bookkeeping"},
		Must: []string{"fence/monotonic"},
		May:  []string{"fence/*", "names/bookkeeping"},
		Alter: func(f *Fake) {
			fence := f.OnFence
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				n, ok, err := fence(ctx, key, token)
				return n | 1<<63, ok, err
			}
		},
	}, {
		Name: "fence counts in the Locker",
		Must: []string{"fence/monotonic"},
		May:  []string{"fence/concurrent", "fence/stale-holder"},
		Alter: func(f *Fake) {
			var mu sync.Mutex
			counts := make(map[string]uint64)
			fence := f.OnFence
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				_, ok, err := fence(ctx, key, token)
				mu.Lock()
				defer mu.Unlock()
				counts[key]++
				return counts[key], ok, err
			}
		},
	}, {
		Name: "fence in blocks of a hundred for each Locker",
		Must: []string{"fence/monotonic"},
		May:  []string{"fence/concurrent", "fence/stale-holder"},
		Alter: func(f *Fake) {
			var mu sync.Mutex
			var next, last uint64
			fence := f.OnFence
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if next == last {
					n, _, _ := fence(context.WithoutCancel(ctx), key, token)
					next, last = n*100, n*100+100
				}
				next++
				it, ok := f.get(key)
				return next, ok && it.token == token && ctx.Err() == nil, ctx.Err()
			}
		},
	}, {
		Name: "the fence counter is deleted with the lock",
		Must: []string{"fence/monotonic", "names/bookkeeping"},
		May:  []string{"fence/concurrent", "fence/stale-holder", "names/exact-keys"},
		Alter: func(f *Fake) {
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				it, ok := f.live(key)
				if !ok || it.token != token || ctx.Err() != nil {
					return 0, false, ctx.Err()
				}
				name := "#" + key
				n := len(f.items[name].token) + 1
				f.items[name] = item{strings.Repeat("x", n), time.Now().Add(time.Hour)}
				return uint64(n), true, nil
			}
			f.Releases(func(key, token string) bool {
				ok := f.store.release(key, token)
				if ok {
					f.Del("#" + key)
				}
				return ok
			})
		},
	}, {
		Name: "fence is read and written in two steps",
		Must: []string{"fence/concurrent"},
		May:  []string{"fence/monotonic", "fence/stale-holder"},
		Alter: func(f *Fake) {
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				f.mu.Lock()
				n := f.counter + 1
				f.mu.Unlock()
				pause()
				f.mu.Lock()
				defer f.mu.Unlock()
				f.counter = n
				it, ok := f.live(key)
				return n, ok && it.token == token && ctx.Err() == nil, ctx.Err()
			}
		},
	}, {
		Name: "fence extends the lock",
		Must: []string{"fence/no-side-effects"},
		May:  []string{"fence/stale-holder"},
		Alter: func(f *Fake) {
			fence := f.OnFence
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				n, ok, err := fence(ctx, key, token)
				if ok {
					f.store.extend(key, token, time.Minute)
				}
				return n, ok, err
			}
		},
	}, {
		Name: "fence ignores ctx",
		Must: []string{"fence/context"},
		Alter: func(f *Fake) {
			f.OnFence = func(_ context.Context, key, token string) (uint64, bool, error) {
				n, ok := f.store.fence(key, token)
				return n, ok, nil
			}
		},
	}}
}
