package mutants

import (
	"context"
	"fmt"
	"iter"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// kept is what a Fake remembers of each lock that it took: the ttl, and how often it was asked for.
type kept struct {
	mu    sync.Mutex
	ttl   map[[2]string]time.Duration
	times map[[2]string]int
	keys  map[string]string // by token, the last key
}

func newKept() *kept {
	return &kept{ttl: make(map[[2]string]time.Duration), times: make(map[[2]string]int), keys: make(map[string]string)}
}

// edges are wrong only in what the holder asks for again, in one of its several locks, or at one size of
// an argument.
func edgeMutants() []Mutant {
	const any = "sametoken/any-sequence"
	var list []Mutant
	add := func(name string, must []string, may []string, alter func(f *Fake)) {
		list = append(list, Mutant{Name: name, Must: must, May: append(may, "sametoken/*", "extend/*", "expiry/*", "exclusion/*", "wait/*",
			"inspect/*", "fence/*", "names/*", "watch/*", "context/*", "release/*", "list/*"), Alter: alter})
	}
	// again changes the ttl of a call by the token that holds the lock.
	again := func(change func(k *kept, id [2]string, left, ttl time.Duration) time.Duration, ops string) func(f *Fake) {
		return func(f *Fake) {
			k := newKept()
			with := func(op string, do func(key, token string, ttl time.Duration) bool) func(key, token string, ttl time.Duration) bool {
				return func(key, token string, ttl time.Duration) bool {
					k.mu.Lock()
					id, to := [2]string{key, token}, ttl
					if it, ok := f.get(key); ok && it.token == token {
						if k.times[id]++; strings.Contains(ops, op) {
							to = change(k, id, time.Until(it.expires), ttl)
						}
					}
					k.ttl[id] = ttl
					k.mu.Unlock()
					return do(key, token, to)
				}
			}
			f.acquires(with("A", f.store.acquire))
			f.extends(with("E", f.store.extend))
		}
	}
	longer := func(_ *kept, _ [2]string, left, ttl time.Duration) time.Duration { return max(left, ttl) }
	shorter := func(_ *kept, _ [2]string, left, ttl time.Duration) time.Duration { return min(left, ttl) }
	same := func(k *kept, id [2]string, left, ttl time.Duration) time.Duration {
		if k.ttl[id] == ttl {
			return left
		}
		return ttl
	}
	ten := func(k *kept, id [2]string, left, ttl time.Duration) time.Duration {
		if k.times[id] > 10 {
			return left
		}
		return ttl
	}
	sum := func(_ *kept, _ [2]string, left, ttl time.Duration) time.Duration { return left + ttl }
	half := func(_ *kept, _ [2]string, left, ttl time.Duration) time.Duration {
		if left > ttl/2 && left < ttl { // "still fresh"
			return left
		}
		return ttl
	}
	for name, change := range map[string]func(k *kept, id [2]string, left, ttl time.Duration) time.Duration{
		"keeps the longer of two times": longer, "keeps the shorter of two times": shorter, "does nothing for the ttl of the last call": same,
		"does nothing from the eleventh call on": ten, "adds to the time that is left": sum, "does nothing while more than half is left": half,
	} {
		add("an Acquire by the holder "+name, []string{any}, nil, again(change, "A"))
		add("an Extend "+name, []string{any}, nil, again(change, "E"))
	}
	add("an Extend does nothing until a tenth of what its client remembers has passed", []string{"sametoken/any-client"}, nil, func(f *Fake) {
		var mu sync.Mutex
		ends := make(map[[2]string]time.Time)
		notes := func(isNeeded func(gain, ttl time.Duration) bool, do func(key, token string, ttl time.Duration) bool) func(key, token string,
			ttl time.Duration) bool {
			return func(key, token string, ttl time.Duration) bool {
				mu.Lock()
				defer mu.Unlock()
				id, end := [2]string{key, token}, time.Now().Add(ttl)
				if !isNeeded(end.Sub(ends[id]), ttl) {
					return true
				}
				ok := do(key, token, ttl)
				if delete(ends, id); ok {
					ends[id] = end
				}
				return ok
			}
		}
		release := f.store.release
		f.acquires(notes(func(_, _ time.Duration) bool { return true }, f.store.acquire))
		f.extends(notes(func(gain, ttl time.Duration) bool { return gain < 0 || gain >= ttl/10 }, f.store.extend))
		f.Releases(func(key, token string) bool {
			mu.Lock()
			defer mu.Unlock()
			delete(ends, [2]string{key, token})
			return release(key, token)
		})
	})

	// One token, several keys.
	keyed := func(before func(f *Fake, k *kept, op, key, token string) (refuse bool)) func(f *Fake) {
		shared := newKept()
		return func(f *Fake) {
			acquire, extend, release := f.store.acquire, f.store.extend, f.store.release
			f.acquires(func(key, token string, ttl time.Duration) bool {
				shared.mu.Lock()
				before(f, shared, "Acquire", key, token)
				shared.keys[token] = key
				shared.mu.Unlock()
				return acquire(key, token, ttl)
			})
			f.extends(func(key, token string, ttl time.Duration) bool {
				shared.mu.Lock()
				refuse := before(f, shared, "Extend", key, token)
				shared.mu.Unlock()
				return !refuse && extend(key, token, ttl)
			})
			f.Releases(func(key, token string) bool {
				shared.mu.Lock()
				refuse := before(f, shared, "Release", key, token)
				shared.mu.Unlock()
				return !refuse && release(key, token)
			})
		}
	}
	const several = "sametoken/several-keys"
	add("an Acquire gives up the last lock of its token", []string{several}, nil, keyed(func(f *Fake, k *kept, op, key, token string) bool {
		if last := k.keys[token]; op == "Acquire" && last != "" && last != key {
			f.store.release(last, token)
		}
		return false
	}))
	add("a token extends only the lock that it acquired last", []string{several}, nil, keyed(func(_ *Fake, k *kept, op, key, token string) bool {
		return op == "Extend" && k.keys[token] != "" && k.keys[token] != key
	}))
	add("a token releases only the lock that it acquired last", []string{several}, nil, keyed(func(_ *Fake, k *kept, op, key, token string) bool {
		return op == "Release" && k.keys[token] != "" && k.keys[token] != key
	}))
	add("a release also frees the lock that its token acquired last", []string{several}, nil, keyed(func(f *Fake, k *kept, op, key, token string) bool {
		if last := k.keys[token]; op == "Release" && last != "" && last != key {
			f.store.release(last, token)
		}
		return false
	}))

	// What has expired, as long as nobody looks.
	const untouched = "expiry/untouched"
	stale := func(f *Fake, key string) (item, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		it, ok := f.items[key]
		return it, ok
	}
	add("Fence serves the last holder of a lock that has expired", []string{untouched}, nil, func(f *Fake) {
		fence := f.OnFence
		f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			n, ok, err := fence(ctx, key, token)
			it, _ := stale(f, key)
			return n, ok || err == nil && it.token == token, err
		}
	})
	add("Inspect reports the last holder of a lock that has expired", []string{untouched}, nil, func(f *Fake) {
		inspect := f.OnInspect
		f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
			info, err := inspect(ctx, key)
			if it, ok := stale(f, key); ok && err == nil && info.Token == "" {
				info.Token = it.token
			}
			return info, err
		}
	})
	add("a Release of a lock that expired less than a minute ago is true", []string{untouched}, nil, func(f *Fake) {
		f.Releases(func(key, token string) bool {
			it, ok := stale(f, key)
			return f.store.release(key, token) || ok && it.token == token
		})
	})
	add("an Extend by the last holder of a lock that has expired revives it", []string{untouched}, nil, func(f *Fake) {
		f.extends(func(key, token string, ttl time.Duration) bool {
			if it, ok := stale(f, key); ok && it.token == token {
				return f.store.acquire(key, token, ttl)
			}
			return f.store.extend(key, token, ttl)
		})
	})

	// Roundings.
	const up = "expiry/rounds-up"
	for unit, name := range map[time.Duration]string{time.Millisecond: "millisecond", 100 * time.Millisecond: "tenth of a second", time.Second: "second"} {
		add("ttl rounded to the nearest "+name, []string{up}, nil, func(f *Fake) {
			f.Timed(func(ttl time.Duration) time.Duration {
				if ttl < unit {
					return ttl
				}
				return ttl.Round(unit)
			})
		})
	}

	// Watchers and waiters.
	const leaves = "watch/one-leaves"
	add("no more than sixteen watchers of a key are woken", []string{leaves}, nil, func(f *Fake) {
		watch := f.OnWatch
		var mu sync.Mutex
		n := make(map[string]int)
		f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			mu.Lock()
			defer mu.Unlock()
			if n[key]++; n[key] > 16 {
				return make(chan struct{}, 1), ctx.Err()
			}
			return watch(ctx, key)
		}
	})
	add("the watchers of a key hear nothing more when the first of them leaves", []string{leaves}, nil, func(f *Fake) {
		watch := f.OnWatch
		var mu sync.Mutex
		first := make(map[string]context.Context)
		f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			mu.Lock()
			defer mu.Unlock()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if first[key] == nil || first[key].Err() != nil {
				first[key] = ctx
			}
			return watch(first[key], key)
		}
	})
	queued := func(next func(queue []*waiter) *waiter) func(f *Fake) {
		return func(f *Fake) {
			f.store.next = func(_ bool, queue []*waiter) *waiter { return next(queue) }
		}
	}
	extreme := func(better func(a, b *waiter) bool) func(queue []*waiter) *waiter {
		return func(queue []*waiter) *waiter {
			best := queue[0]
			for _, w := range queue {
				if better(w, best) {
					best = w
				}
			}
			return best
		}
	}
	add("the waiter with the shortest ttl is served first", []string{"wait/fifo"}, nil, queued(extreme(func(a, b *waiter) bool { return a.ttl < b.ttl })))
	add("Wait returns ErrHeld although its context had ended before", []string{"wait/context"}, nil, func(f *Fake) {
		wait := f.OnWait
		f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
			if _, held := f.get(key); held && ctx.Err() != nil {
				return time.Time{}, fmt.Errorf("%w: %w", locker.ErrHeld, ctx.Err())
			}
			return wait(ctx, key, token, ttl)
		}
	})
	list = append(list, Mutant{Name: "Wait returns a deadline of the wall clock", RealTime: true, Must: []string{"wait/uncontended"},
		May: []string{"*"}, Alter: func(f *Fake) {
			wait := f.OnWait
			f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				deadline, err := wait(ctx, key, token, ttl)
				return deadline.Round(0), err
			}
		}})

	// What is left of calls that are not the usual ones.
	leak := func(leaks func(op string, ok bool, err error) bool) func(f *Fake) {
		return func(f *Fake) {
			left := func(op string, ok bool, err error) {
				if leaks(op, ok, err) {
					go time.Sleep(time.Minute)
				}
			}
			acquire, extend, release, fence, inspect := f.OnAcquire, f.OnExtend, f.OnRelease, f.OnFence, f.OnInspect
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				left("Acquire", ok, err)
				return ok, err
			}
			f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := extend(ctx, key, token, ttl)
				left("Extend", ok, err)
				return ok, err
			}
			f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
				ok, err := release(ctx, key, token)
				left("Release", ok, err)
				return ok, err
			}
			f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				n, ok, err := fence(ctx, key, token)
				left("Fence", ok, err)
				return n, ok, err
			}
			f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
				info, err := inspect(ctx, key)
				left("Inspect", true, err)
				return info, err
			}
		}
	}
	for _, op := range []string{"Acquire", "Extend", "Release", "Fence"} {
		add("a goroutine for each "+op+" that is refused", []string{"context/no-leak"}, nil,
			leak(func(o string, ok bool, err error) bool { return o == op && !ok && err == nil }))
		add("a goroutine for each "+op+" whose context has ended", []string{"context/no-leak"}, nil,
			leak(func(o string, _ bool, err error) bool { return o == op && err != nil }))
	}
	add("a goroutine for each Inspect", []string{"context/no-leak"}, nil, leak(func(o string, _ bool, err error) bool { return o == "Inspect" && err == nil }))
	add("a deadline beyond a century is taken for one that has passed", []string{"context/future-deadline"}, nil, func(f *Fake) {
		fence := f.OnFence
		f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > 100*365*24*time.Hour {
				return 0, false, context.DeadlineExceeded
			}
			return fence(ctx, key, token)
		}
	})

	// Prefixes.
	for name, begins := range map[string]func(key, prefix string) bool{
		"in any case":                     func(key, prefix string) bool { return strings.HasPrefix(strings.ToLower(key), strings.ToLower(prefix)) },
		"with the case of Unicode folded": func(key, prefix string) bool { return strings.HasPrefix(foldCase(key), foldCase(prefix)) },
		"as a pattern of LIKE":            func(key, prefix string) bool { return like(prefix, key) },
		"as a glob": func(key, prefix string) bool {
			ok, _ := path.Match(strings.ReplaceAll(prefix, "/", ":")+"*", strings.ReplaceAll(key, "/", ":"))
			return ok || strings.HasPrefix(key, prefix)
		},
		"without spaces at its end": func(key, prefix string) bool { return strings.HasPrefix(key, strings.TrimRight(prefix, " ")) },
		"up to its first NUL": func(key, prefix string) bool {
			p, _, _ := strings.Cut(prefix, "\x00")
			return strings.HasPrefix(key, p)
		},
		"up to and with its end": func(key, prefix string) bool { return key >= prefix && key <= prefix+"\xff" },
		"as a range of valid UTF-8": func(key, prefix string) bool {
			return strings.HasPrefix(key, prefix) && !strings.HasPrefix(key, prefix+"\xff")
		},
		"after separators are folded": func(key, prefix string) bool { return strings.HasPrefix(foldSeparators(key), foldSeparators(prefix)) },
		"after lock: is removed": func(key, prefix string) bool {
			return strings.HasPrefix(strings.TrimPrefix(key, "lock:"), strings.TrimPrefix(prefix, "lock:"))
		},
	} {
		add("List compares its prefix "+name, []string{"list/prefix"}, nil, func(f *Fake) {
			f.OnList = func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
				return pages(ctx, func() (list []locker.Info) {
					for _, info := range f.store.list("") {
						if begins(info.Key, prefix) {
							list = append(list, info)
						}
					}
					return list
				})
			}
		})
	}
	return list
}
