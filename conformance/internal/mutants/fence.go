package mutants

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

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
		Name:  "fence starts again at 1",
		Must:  []string{"fence/outlives-data"},
		Alter: func(f *Fake) { f.store.countsFromOne = true },
	}, {
		Name: "fence counts in the Locker",
		Must: []string{"fence/monotonic"},
		May:  []string{"fence/concurrent", "fence/outlives-data", "fence/stale-holder"},
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
		May:  []string{"fence/concurrent", "fence/outlives-data", "fence/stale-holder", "names/exact-keys"},
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
				if f.ID == 0 { // long enough for the others to mint several numbers meanwhile
					time.Sleep(5 * time.Millisecond)
				}
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
