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

// watches replaces a fake's Watch by one that minds ctx and is otherwise as given.
func (f *Fake) watches(do func(ctx context.Context, key string) <-chan struct{}) {
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return do(ctx, key), nil
	}
}

// relays puts something between the wake-ups of a correct Watch and its caller.
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
		Name: "a watcher that leaves takes the others of its key with it",
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
		Name: "a release that hands over wakes no watcher",
		Only: []string{"watch/*", "wait/*"},
		Must: []string{"watch/handoff"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.live(key); !ok || it.token != token {
					return false
				}
				queued := len(f.lines[key]) > 0
				delete(f.items, key)
				f.advance(key)
				if !queued {
					f.wake(key)
				}
				return true
			})
		},
	}, {
		Name: "a slow watcher holds up the others",
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
		Name: "the channel is closed in the end",
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
		Name: "watch does not look at ctx",
		Must: []string{"watch/ends-with-context"},
		Alter: func(f *Fake) {
			f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) { return f.store.watch(ctx, f, key), nil }
		},
	}}
}

// waits replaces a fake's Wait by one that minds ctx before the call and is otherwise as given.
func (f *Fake) Waits(do func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)) {
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		return do(ctx, key, token, ttl)
	}
}

// inLine returns the waiter of token, if it stands in line.
func (f *Fake) inLine(key, token string) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.lines[key] {
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
		{Name: "a waiter that was cancelled stays in line",
			Must:  []string{"wait/cancel", "wait/head-leaves"},
			May:   []string{"wait/cancel-stress"},
			Alter: func(f *Fake) { f.staysInLine = true }},
		{Name: "a grant that crosses with the leaving is lost",
			Must:  []string{"wait/cancel-stress"},
			May:   []string{"wait/cancel"},
			Alter: func(f *Fake) { f.losesGrants = true }},
		{Name: "a waiter that leaves takes another's place with it",
			Must:  []string{"wait/cancel-stress"},
			May:   []string{"wait/cancel", "wait/head-leaves"},
			Alter: func(f *Fake) { f.drops = true }},
		{Name: "the line moves only by releases",
			Must:  []string{"wait/holder-vanishes"},
			May:   []string{"wait/deadline", "wait/head-leaves", "wait/keeps-place", "wait/own-ttl"},
			Alter: func(f *Fake) { f.onlyReleases = true }},
		{Name: "the first in line watches for the expiry, and leaves without a successor",
			Only:  []string{"wait/*"},
			Must:  []string{"wait/head-leaves"},
			May:   []string{"wait/cancel-stress", "wait/cancel"},
			Alter: func(f *Fake) { f.firstWatches = true }},
		{Name: "acquire passes the line",
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
		{Name: "whoever looks first has the lock after its holder vanished",
			Only: []string{"wait/*"},
			Must: []string{"wait/keeps-place"},
			May:  []string{"wait/own-ttl"},
			Alter: func(f *Fake) {
				f.next = func(vanished bool, line []*waiter) *waiter {
					if vanished {
						return line[rand.IntN(len(line))]
					}
					return line[0]
				}
			}},
		{Name: "last come, first served after the holder vanished",
			Only: []string{"wait/*"},
			Must: []string{"wait/keeps-place"},
			May:  []string{"wait/own-ttl"},
			Alter: func(f *Fake) {
				f.next = func(vanished bool, line []*waiter) *waiter {
					if vanished {
						return line[len(line)-1]
					}
					return line[0]
				}
			}},
		{Name: "a grant with the ttl of another in line",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl"},
			May:  []string{"wait/cancel-stress"},
			Alter: func(f *Fake) {
				f.grants = func(_ time.Duration, _ *waiter, line []*waiter) time.Duration { return line[len(line)-1].ttl }
			}},
		{Name: "a grant with the ttl of the holder before",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl"},
			May:  []string{"wait/*"},
			Alter: func(f *Fake) {
				f.grants = func(held time.Duration, _ *waiter, _ []*waiter) time.Duration { return held }
			}},
		{Name: "a grant with a ttl of the adapter's own",
			Only: []string{"wait/*"},
			Must: []string{"wait/own-ttl", "wait/deadline"},
			May:  []string{"wait/*"},
			Alter: func(f *Fake) {
				f.grants = func(time.Duration, *waiter, []*waiter) time.Duration { return time.Second }
			}},
		{Name: "a short grant of which the deadline knows",
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
		{Name: "a token that waits in line can extend",
			Only: []string{"wait/*"},
			Must: []string{"wait/queued-token"},
			Alter: func(f *Fake) {
				f.extends(func(key, token string, ttl time.Duration) bool {
					return f.store.extend(key, token, ttl) || f.inLine(key, token) != nil
				})
			}},
		{Name: "a release takes its token out of the line",
			Only: []string{"wait/*"},
			Must: []string{"wait/queued-token"},
			Alter: func(f *Fake) {
				f.Releases(func(key, token string) bool {
					if w := f.inLine(key, token); w != nil {
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
			Name: "leaving the line does not say that the lock is held",
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
			Name: "leaving the line does not say why",
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
			Name: "wait does not look at ctx before",
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
			Name: "its own token waits for itself",
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
			Name: "a name that Wait cannot do is locked all the same",
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
			Name: "the line's own key cannot be every name's",
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
		Name: "the fence counter goes with the lock",
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
		Name: "fence does not look at ctx",
		Must: []string{"fence/context"},
		Alter: func(f *Fake) {
			f.OnFence = func(_ context.Context, key, token string) (uint64, bool, error) {
				n, ok := f.store.fence(key, token)
				return n, ok, nil
			}
		},
	}}
}
