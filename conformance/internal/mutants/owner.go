package mutants

import (
	"context"
	"sync"
	"time"
)

// Mutants of Extend, of Release, and of Acquire by the token that holds the lock.
func ownerMutants() []Mutant {
	return []Mutant{{
		Name: "extend as a bare expire",
		Must: []string{
			"extend/owner-only", "extend/after-takeover", "exclusion/owner-is-token",
			"names/exact-tokens",
		},
		May: []string{"expiry/takeover-ownership", "extend/atomic", "wait/queued-token"},
		Alter: func(f *Fake) {
			f.extends(func(key, _ string, ttl time.Duration) bool { return f.expire(key, ttl) })
		},
	}, {
		Name: "extend as SET XX",
		Must: []string{"extend/owner-only", "exclusion/owner-is-token", "names/exact-tokens"},
		May:  []string{"expiry/takeover-ownership", "extend/after-takeover", "extend/atomic", "wait/holder-vanishes", "wait/queued-token"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				_, ok := f.live(key)
				if ok {
					f.items[key] = item{token, time.Now().Add(ttl)}
				}
				return ok
			})
		},
	}, {
		Name: "extend that re-creates",
		Must: []string{"extend/after-release", "extend/after-expiry", "release/from-another-client"},
		May:  []string{"extend/after-takeover", "extend/atomic"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool { return f.store.acquire(key, token, ttl) })
		},
	}, {
		Name: "extend revives its own expired lock",
		Must: []string{"extend/after-expiry"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.items[key]; !ok || it.token != token {
					return false
				}
				f.items[key] = item{token, time.Now().Add(ttl)}
				return true
			})
		},
	}, {
		Name: "extend that adds",
		Must: []string{"extend/shorter", "extend/replaces"},
		May:  []string{"expiry/rounds-up", "extend/longer", "extend/keep-alive", "fence/monotonic", "wait/holder-vanishes"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				it, ok := f.get(key)
				return ok && f.store.extend(key, token, max(ttl, ttl+time.Until(it.expires)))
			})
		},
	}, {
		Name: "extend never shortens",
		Must: []string{"extend/shorter"},
		May:  []string{"fence/monotonic"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				it, ok := f.get(key)
				return ok && f.store.extend(key, token, max(ttl, time.Until(it.expires)))
			})
		},
	}, {
		Name: "extend returns true and does nothing",
		Must: []string{"extend/shorter", "extend/keep-alive", "extend/longer"},
		May:  []string{"extend/*", "wait/holder-vanishes", "fence/monotonic"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, _ time.Duration) bool {
				it, ok := f.get(key)
				return ok && it.token == token
			})
		},
	}, {
		Name: "extend by get, compare, expire",
		Must: []string{"extend/atomic"},
		Alter: func(f *Fake) {
			f.extends(func(key, token string, ttl time.Duration) bool {
				it, ok := f.get(key)
				if !ok || it.token != token {
					return false
				}
				time.Sleep(3 * time.Millisecond)
				return f.expire(key, ttl)
			})
		},
	}, {
		Name: "release by bare delete",
		Must: []string{
			"release/owner-only", "release/after-takeover", "exclusion/owner-is-token",
			"names/independent", "names/exact-tokens",
		},
		May: []string{"expiry/takeover-ownership", "release/atomic", "wait/queued-token"},
		Alter: func(f *Fake) {
			f.Releases(func(key, _ string) bool { return f.Del(key) })
		},
	}, {
		Name: "release by get, compare, delete",
		Must: []string{"release/atomic"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				it, ok := f.get(key)
				if !ok || it.token != token {
					return false
				}
				time.Sleep(3 * time.Millisecond)
				return f.Del(key)
			})
		},
	}, {
		Name: "release always returns true",
		Must: []string{
			"release/twice", "release/owner-only", "release/after-expiry", "release/after-takeover",
			"sametoken/reacquire", "exclusion/owner-is-token", "names/independent", "names/exact-tokens",
		},
		May: []string{"expiry/takeover-ownership", "wait/uncontended", "wait/queued-token"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool { f.store.release(key, token); return true })
		},
	}, {
		Name: "release of an expired lock returns true",
		Must: []string{"release/after-expiry"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if f.items[key].token != token {
					return false
				}
				f.free(key)
				return true
			})
		},
	}, {
		Name: "release in the background",
		Must: []string{"release/immediate", "release/twice", "exclusion/one-holder"},
		May:  []string{"*"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				it, ok := f.get(key)
				if !ok || it.token != token {
					return false
				}
				time.AfterFunc(3*time.Millisecond, func() { f.store.release(key, token) })
				return true
			})
		},
	}, {
		Name: "release returns true and does nothing",
		Must: []string{
			"release/immediate", "release/twice", "exclusion/one-holder", "watch/wakes-all",
			"watch/every-release",
		},
		May: []string{"*"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				it, ok := f.get(key)
				return ok && it.token == token
			})
		},
	}, {
		Name: "the state of a lock is kept in the Locker that acquired it",
		Must: []string{"release/from-another-client"},
		Alter: func(f *Fake) {
			var mine sync.Map
			acquire, extend, release := f.OnAcquire, f.OnExtend, f.OnRelease
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				if ok {
					mine.Store(key+token, true)
				}
				return ok, err
			}
			wait := f.OnWait
			f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
				mine.Store(key+token, true)
				return wait(ctx, key, token, ttl)
			}
			f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if _, ok := mine.Load(key + token); !ok && ctx.Err() == nil {
					return false, nil
				}
				return extend(ctx, key, token, ttl)
			}
			f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
				if _, ok := mine.Load(key + token); !ok && ctx.Err() == nil {
					return false, nil
				}
				return release(ctx, key, token)
			}
		},
	}, {
		Name: "its own token is refused",
		Must: []string{
			"sametoken/reacquire", "sametoken/ttl-restarts", "sametoken/after-loss",
			"sametoken/concurrent", "names/any-token",
		},
		May: []string{"release/from-another-client", "wait/uncontended", "fence/monotonic"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool { return f.setNX(key, token, ttl) })
		},
	}, {
		Name: "its own token is recognized, and the expiry stays",
		Must: []string{"sametoken/ttl-restarts"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				if it, ok := f.get(key); ok && it.token == token {
					return true
				}
				return f.store.acquire(key, token, ttl)
			})
		},
	}, {
		Name: "a token that has acquired the lock before is let in again",
		Must: []string{"sametoken/after-loss", "exclusion/one-holder"},
		May:  []string{"fence/holder-only"},
		Alter: func(f *Fake) {
			var mine sync.Map
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				if _, before := mine.Load(key + token); before && err == nil {
					return true, nil
				}
				if ok {
					mine.Store(key+token, true)
				}
				return ok, err
			}
		},
	}, {
		Name: "its own token, set by a concurrent attempt, is taken for another's",
		Must: []string{"sametoken/concurrent"},
		Alter: func(f *Fake) {
			var busy sync.Map
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if _, ok := busy.LoadOrStore(key+token, true); ok {
					return false, nil
				}
				defer busy.Delete(key + token)
				pause()
				return acquire(ctx, key, token, ttl)
			}
		},
	}}
}
