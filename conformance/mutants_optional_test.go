package conformance

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
func (f *fake) watches(do func(ctx context.Context, key string) <-chan struct{}) {
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return do(ctx, key), nil
	}
}

// relays puts something between the wake-ups of a correct Watch and its caller.
func (f *fake) relays(room int, between func(ctx context.Context, from <-chan struct{}, to chan struct{})) {
	f.watches(func(ctx context.Context, key string) <-chan struct{} {
		from, to := f.store.watch(ctx, f, key), make(chan struct{}, room)
		go between(ctx, from, to)
		return to
	})
}

var watchMutants = []mutant{{
	name: "watch subscribes after it has returned",
	must: []string{"watch/no-missed-release"},
	may:  []string{"watch/*"},
	alter: func(f *fake) {
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
	name: "watch begins one revision late",
	must: []string{"watch/first-release"},
	may:  []string{"watch/*"},
	only: []string{"watch/*", "release/*"},
	alter: func(f *fake) {
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
	name: "wake-up before the key is free",
	must: []string{"watch/no-missed-release"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "one watcher a key",
	must: []string{"watch/wakes-all"},
	may:  []string{"watch/handed-over"},
	alter: func(f *fake) {
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
	name: "a watcher that leaves takes the others of its key with it",
	must: []string{"watch/wakes-all"},
	may:  []string{"watch/no-missed-release"},
	alter: func(f *fake) {
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
	name: "only the first release wakes",
	must: []string{"watch/every-release", "watch/handed-over", "watch/wakes-all", "watch/only-its-key"},
	alter: func(f *fake) {
		f.relays(1, func(ctx context.Context, from <-chan struct{}, to chan struct{}) {
			select {
			case <-from:
				poke(to)
			case <-ctx.Done():
			}
		})
	},
}, {
	name: "only its own releases wake",
	must: []string{"watch/every-release", "watch/wakes-all"},
	may:  []string{"watch/*"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "a release that hands over wakes no watcher",
	only: []string{"watch/*", "wait/*"},
	must: []string{"watch/handed-over"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "a slow watcher holds up the others",
	must: []string{"watch/every-release"},
	may:  []string{"watch/no-missed-release", "watch/wakes-all"},
	alter: func(f *fake) {
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
	name: "one signal for all keys",
	must: []string{"watch/only-its-key"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "the watched name is a pattern",
	must: []string{"watch/any-name"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "the channel is closed in the end",
	must: []string{"watch/channel"},
	alter: func(f *fake) {
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
	name: "the channel has room for ten",
	must: []string{"watch/channel"},
	alter: func(f *fake) {
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
	name: "a goroutine for each watcher that does not end",
	must: []string{"watch/ends-with-context"},
	alter: func(f *fake) {
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
	name: "watch does not look at ctx",
	must: []string{"watch/ends-with-context"},
	alter: func(f *fake) {
		f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) { return f.store.watch(ctx, f, key), nil }
	},
}}

// waits replaces a fake's Wait by one that minds ctx before the call and is otherwise as given.
func (f *fake) waits(do func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)) {
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		return do(ctx, key, token, ttl)
	}
}

// inLine returns the waiter of token, if it stands in line.
func (f *fake) inLine(key, token string) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.lines[key] {
		if w.token == token {
			return w
		}
	}
	return nil
}

var waitMutants = []mutant{
	{name: "last come, first served",
		must:  []string{"wait/in-turn", "wait/place-kept"},
		may:   []string{"wait/storm", "wait/own-ttl"},
		alter: func(f *fake) { f.lastFirst = true }},
	{name: "a waiter that was cancelled stays in line",
		must:  []string{"wait/cancelled", "wait/first-leaves"},
		may:   []string{"wait/storm"},
		alter: func(f *fake) { f.staysInLine = true }},
	{name: "a grant that crosses with the leaving is lost",
		must:  []string{"wait/storm"},
		may:   []string{"wait/cancelled"},
		alter: func(f *fake) { f.losesGrants = true }},
	{name: "a waiter that leaves takes another's place with it",
		must:  []string{"wait/storm"},
		may:   []string{"wait/cancelled", "wait/first-leaves"},
		alter: func(f *fake) { f.drops = true }},
	{name: "the line moves only by releases",
		must:  []string{"wait/holder-vanishes"},
		may:   []string{"wait/deadline", "wait/first-leaves", "wait/place-kept", "wait/own-ttl"},
		alter: func(f *fake) { f.onlyReleases = true }},
	{name: "the first in line watches for the expiry, and leaves without a successor",
		only:  []string{"wait/*"},
		must:  []string{"wait/first-leaves"},
		may:   []string{"wait/storm", "wait/cancelled"},
		alter: func(f *fake) { f.firstWatches = true }},
	{name: "acquire passes the line",
		must:  []string{"wait/not-passed"},
		may:   []string{"wait/place-kept", "wait/own-ttl", "wait/token-in-line"},
		alter: func(f *fake) { f.gap = true }},
	{name: "a release wakes all, and they race",
		must:  []string{"wait/in-turn"},
		may:   []string{"wait/not-passed", "wait/place-kept", "wait/own-ttl", "wait/token-in-line"},
		alter: func(f *fake) { f.races = true }},
	{name: "a waiter's place moves to the end when the holder vanishes",
		only:  []string{"wait/*"},
		must:  []string{"wait/place-kept"},
		may:   []string{"wait/own-ttl"},
		alter: func(f *fake) { f.rotates = func(why string) bool { return why == "vanished" } }},
	{name: "a waiter's place moves to the end when the holder extends",
		only:  []string{"wait/*"},
		must:  []string{"wait/place-kept"},
		alter: func(f *fake) { f.rotates = func(why string) bool { return why == "extended" } }},
	{name: "a waiter's place moves to the end when another is refused",
		only:  []string{"wait/*"},
		must:  []string{"wait/place-kept"},
		may:   []string{"wait/own-ttl", "wait/in-turn"},
		alter: func(f *fake) { f.rotates = func(why string) bool { return why == "refused" } }},
	{name: "whoever looks first has the lock after its holder vanished",
		only: []string{"wait/*"},
		must: []string{"wait/place-kept"},
		may:  []string{"wait/own-ttl"},
		alter: func(f *fake) {
			f.next = func(vanished bool, line []*waiter) *waiter {
				if vanished {
					return line[rand.IntN(len(line))]
				}
				return line[0]
			}
		}},
	{name: "last come, first served after the holder vanished",
		only: []string{"wait/*"},
		must: []string{"wait/place-kept"},
		may:  []string{"wait/own-ttl"},
		alter: func(f *fake) {
			f.next = func(vanished bool, line []*waiter) *waiter {
				if vanished {
					return line[len(line)-1]
				}
				return line[0]
			}
		}},
	{name: "a grant with the ttl of another in line",
		only: []string{"wait/*"},
		must: []string{"wait/own-ttl"},
		may:  []string{"wait/storm"},
		alter: func(f *fake) {
			f.grants = func(_ time.Duration, _ *waiter, line []*waiter) time.Duration { return line[len(line)-1].ttl }
		}},
	{name: "a grant with the ttl of the holder before",
		only: []string{"wait/*"},
		must: []string{"wait/own-ttl"},
		may:  []string{"wait/*"},
		alter: func(f *fake) {
			f.grants = func(held time.Duration, _ *waiter, _ []*waiter) time.Duration { return held }
		}},
	{name: "a grant with a ttl of the adapter's own",
		only: []string{"wait/*"},
		must: []string{"wait/own-ttl", "wait/deadline"},
		may:  []string{"wait/*"},
		alter: func(f *fake) {
			f.grants = func(time.Duration, *waiter, []*waiter) time.Duration { return time.Second }
		}},
	{name: "a short grant of which the deadline knows",
		only: []string{"wait/*"},
		must: []string{"wait/own-ttl"},
		may:  []string{"wait/*"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				if _, held := f.get(key); held {
					ttl = min(ttl, time.Second)
				}
				return f.store.wait(ctx, key, token, ttl)
			})
		}},
	{name: "a token that waits in line can extend",
		only: []string{"wait/*"},
		must: []string{"wait/token-in-line"},
		alter: func(f *fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				return f.store.extend(key, token, ttl) || f.inLine(key, token) != nil
			})
		}},
	{name: "a release takes its token out of the line",
		only: []string{"wait/*"},
		must: []string{"wait/token-in-line"},
		alter: func(f *fake) {
			f.releases(func(key, token string) bool {
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
		name: "wait by set, and release by delete, whatever is there",
		must: []string{"wait/storm", "wait/free-at-once"},
		may:  []string{"*"},
		alter: func(f *fake) {
			f.waits(func(_ context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline := time.Now().Add(ttl)
				f.set(key, token, ttl)
				return deadline, nil
			})
			f.releases(func(key, _ string) bool { f.del(key); return true })
		},
	}, {
		name: "a waiter that trusts the holder's ttl as it was when it joined",
		must: []string{"wait/holder-vanishes"},
		may:  []string{"wait/place-kept", "wait/own-ttl"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
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
		name: "the deadline counts from when the news arrived",
		must: []string{"wait/deadline"},
		may:  []string{"wait/own-ttl", "wait/place-kept"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				_, err := f.store.wait(ctx, key, token, ttl)
				if err == nil {
					time.Sleep(300 * time.Millisecond)
				}
				return time.Now().Add(ttl), err
			})
		},
	}, {
		name: "the deadline counts from the joining",
		must: []string{"wait/deadline", "wait/own-ttl"},
		may:  []string{"wait/place-kept"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline := time.Now().Add(ttl)
				_, err := f.store.wait(ctx, key, token, ttl)
				return deadline, err
			})
		},
	}, {
		name: "leaving the line does not say that the lock is held",
		must: []string{"wait/cancelled"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline, err := f.store.wait(ctx, key, token, ttl)
				if err != nil {
					err = ctx.Err()
				}
				return deadline, err
			})
		},
	}, {
		name: "leaving the line does not say why",
		must: []string{"wait/cancelled"},
		may:  []string{"wait/storm"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline, err := f.store.wait(ctx, key, token, ttl)
				if err != nil {
					err = locker.ErrHeld
				}
				return deadline, err
			})
		},
	}, {
		name: "wait does not look at ctx before",
		must: []string{"wait/context"},
		alter: func(f *fake) {
			f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				return f.store.wait(ctx, key, token, ttl)
			}
		},
	}, {
		name: "a waiter's goroutine outlives it",
		must: []string{"wait/context"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				go time.Sleep(min(ttl, time.Minute))
				return f.store.wait(ctx, key, token, ttl)
			})
		},
	}, {
		name: "its own token waits for itself",
		must: []string{"wait/free-at-once"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
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
		name: "a wait that is not supported gives up its place later",
		must: []string{"wait/unsupported"},
		alter: func(f *fake) {
			f.waits(func(_ context.Context, key, token string, _ time.Duration) (time.Time, error) {
				time.AfterFunc(2*time.Millisecond, func() { f.store.release(key, token) })
				return time.Time{}, errors.ErrUnsupported
			})
		},
	}, {
		name: "a name that Wait cannot do is locked all the same",
		must: []string{"wait/any-name"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline, err := f.store.wait(ctx, key, token, ttl)
				if strings.ContainsAny(key, "{}") && err == nil {
					return time.Time{}, errors.ErrUnsupported
				}
				return deadline, err
			})
		},
	}, {
		name: "the line's own key cannot be every name's",
		must: []string{"wait/any-name"},
		alter: func(f *fake) {
			f.waits(func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				if strings.ContainsAny(key, "{}") {
					return time.Time{}, fmt.Errorf("CROSSSLOT Keys in request don't hash to the same slot")
				}
				return f.store.wait(ctx, key, token, ttl)
			})
		},
	},
}

var fenceMutants = []mutant{{
	name: "fence without the owner check",
	must: []string{"fence/only-the-holder"},
	may:  []string{"fence/stale-holder", "wait/token-in-line"},
	alter: func(f *fake) {
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			n, _ := f.store.fence(key, token)
			return n, ctx.Err() == nil, ctx.Err()
		}
	},
}, {
	name: "fence checks the owner, then increments",
	must: []string{"fence/stale-holder"},
	alter: func(f *fake) {
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			if it, ok := f.get(key); !ok || it.token != token || ctx.Err() != nil {
				return 0, false, ctx.Err()
			}
			time.Sleep(rand.N(4 * time.Millisecond))
			n, _ := f.store.fence(key, token)
			return n, true, nil
		}
	},
}, {
	name: "fence counts in the Locker",
	must: []string{"fence/grows"},
	may:  []string{"fence/in-order", "fence/stale-holder"},
	alter: func(f *fake) {
		var mu sync.Mutex
		counts := make(map[string]uint64)
		fence := f.fence
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			_, ok, err := fence(ctx, key, token)
			mu.Lock()
			defer mu.Unlock()
			counts[key]++
			return counts[key], ok, err
		}
	},
}, {
	name: "fence in blocks of a hundred for each Locker",
	must: []string{"fence/grows"},
	may:  []string{"fence/in-order", "fence/stale-holder"},
	alter: func(f *fake) {
		var mu sync.Mutex
		var next, last uint64
		fence := f.fence
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
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
	name: "the fence counter goes with the lock",
	must: []string{"fence/grows", "names/bookkeeping"},
	may:  []string{"fence/in-order", "fence/stale-holder", "names/exact"},
	alter: func(f *fake) {
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
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
		f.releases(func(key, token string) bool {
			ok := f.store.release(key, token)
			if ok {
				f.del("#" + key)
			}
			return ok
		})
	},
}, {
	name: "fence is read and written in two steps",
	must: []string{"fence/in-order"},
	may:  []string{"fence/grows", "fence/stale-holder"},
	alter: func(f *fake) {
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
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
	name: "fence extends the lock",
	must: []string{"fence/moves-nothing"},
	may:  []string{"fence/stale-holder"},
	alter: func(f *fake) {
		fence := f.fence
		f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			n, ok, err := fence(ctx, key, token)
			if ok {
				f.store.extend(key, token, time.Minute)
			}
			return n, ok, err
		}
	},
}, {
	name: "fence does not look at ctx",
	must: []string{"fence/context"},
	alter: func(f *fake) {
		f.fence = func(_ context.Context, key, token string) (uint64, bool, error) {
			n, ok := f.store.fence(key, token)
			return n, ok, nil
		}
	},
}}
