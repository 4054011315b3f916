package mutants

import (
	"context"
	"path"
	"sync"
	"time"
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

// announces makes announce wake the watchers of a key that a correct Release has freed, or handed
// to the first in its queue.
func (f *Fake) announces(announce func(key string, handedOff bool)) {
	f.Releases(func(key, token string) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if it, ok := f.live(key); !ok || it.token != token {
			return false
		}
		queued := len(f.queues[key]) > 0
		delete(f.items, key)
		f.advance(key)
		announce(key, queued)
		return true
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
			f.announces(func(key string, _ bool) {
				for _, w := range f.watchers {
					if w.key == key && w.owner == f {
						poke(w.ch)
					}
				}
			})
		},
	}, {
		Name: "a handoff wakes no watcher",
		Only: []string{"watch/*", "wait/*"},
		Must: []string{"watch/handoff"},
		Alter: func(f *Fake) {
			f.announces(func(key string, handedOff bool) {
				if !handedOff {
					f.wake(key)
				}
			})
		},
	}, {
		Name: "a slow watcher blocks the others",
		Must: []string{"watch/every-release"},
		May:  []string{"watch/no-missed-release", "watch/wakes-all"},
		Alter: func(f *Fake) {
			// One goroutine for a key, as one subscription may have, which waits until each has
			// read.
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
			f.announces(func(key string, _ bool) {
				for _, w := range f.watchers {
					if ok, _ := path.Match(w.key, key); ok {
						poke(w.ch)
					}
				}
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
