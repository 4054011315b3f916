package conformance

import (
	"context"
	"sync"
	"time"
)

// Mutants of Extend, of Release, and of Acquire by the token that holds the lock.
var ownerMutants = []mutant{{
	name: "extend as a bare expire",
	must: []string{
		"extend/only-the-owner", "extend/after-takeover", "exclusion/owner-is-the-token",
		"names/exact-tokens",
	},
	may: []string{"expiry/winner-owns", "extend/atomic", "wait/token-in-line"},
	alter: func(f *fake) {
		f.extends(func(key, _ string, ttl time.Duration) bool { return f.expire(key, ttl) })
	},
}, {
	name: "extend as SET XX",
	must: []string{"extend/only-the-owner", "exclusion/owner-is-the-token", "names/exact-tokens"},
	may:  []string{"expiry/winner-owns", "extend/after-takeover", "extend/atomic", "wait/holder-vanishes", "wait/token-in-line"},
	alter: func(f *fake) {
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
	name: "extend that re-creates",
	must: []string{"extend/after-release", "extend/after-expiry", "release/from-another-client"},
	may:  []string{"extend/after-takeover", "extend/atomic"},
	alter: func(f *fake) {
		f.extends(func(key, token string, ttl time.Duration) bool { return f.store.acquire(key, token, ttl) })
	},
}, {
	name: "extend revives its own expired lock",
	must: []string{"extend/after-expiry"},
	alter: func(f *fake) {
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
	name: "extend that adds",
	must: []string{"extend/shorter", "extend/replaces"},
	may:  []string{"extend/longer", "extend/keeps-alive", "fence/grows", "wait/holder-vanishes"},
	alter: func(f *fake) {
		f.extends(func(key, token string, ttl time.Duration) bool {
			it, ok := f.get(key)
			return ok && f.store.extend(key, token, max(ttl, ttl+time.Until(it.expires)))
		})
	},
}, {
	name: "extend never shortens",
	must: []string{"extend/shorter"},
	may:  []string{"fence/grows"},
	alter: func(f *fake) {
		f.extends(func(key, token string, ttl time.Duration) bool {
			it, ok := f.get(key)
			return ok && f.store.extend(key, token, max(ttl, time.Until(it.expires)))
		})
	},
}, {
	name: "extend says true and does nothing",
	must: []string{"extend/shorter", "extend/keeps-alive", "extend/longer"},
	may:  []string{"extend/*", "wait/holder-vanishes", "fence/grows"},
	alter: func(f *fake) {
		f.extends(func(key, token string, _ time.Duration) bool {
			it, ok := f.get(key)
			return ok && it.token == token
		})
	},
}, {
	name: "extend by get, compare, expire",
	must: []string{"extend/atomic"},
	alter: func(f *fake) {
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
	name: "release by bare delete",
	must: []string{
		"release/only-the-owner", "release/after-takeover", "exclusion/owner-is-the-token",
		"names/independent", "names/exact-tokens",
	},
	may: []string{"expiry/winner-owns", "release/atomic", "wait/token-in-line"},
	alter: func(f *fake) {
		f.releases(func(key, _ string) bool { return f.del(key) })
	},
}, {
	name: "release by get, compare, delete",
	must: []string{"release/atomic"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
			it, ok := f.get(key)
			if !ok || it.token != token {
				return false
			}
			time.Sleep(3 * time.Millisecond)
			return f.del(key)
		})
	},
}, {
	name: "release always says true",
	must: []string{
		"release/twice", "release/only-the-owner", "release/after-expiry", "release/after-takeover",
		"sametoken/again", "exclusion/owner-is-the-token", "names/independent", "names/exact-tokens",
	},
	may: []string{"expiry/winner-owns", "wait/free-at-once", "wait/token-in-line"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool { f.store.release(key, token); return true })
	},
}, {
	name: "release of an expired lock says true",
	must: []string{"release/after-expiry"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
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
	name: "release in the background",
	must: []string{"release/frees-at-once", "release/twice", "exclusion/one-holder"},
	may:  []string{"*"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
			it, ok := f.get(key)
			if !ok || it.token != token {
				return false
			}
			time.AfterFunc(3*time.Millisecond, func() { f.store.release(key, token) })
			return true
		})
	},
}, {
	name: "release says true and does nothing",
	must: []string{
		"release/frees-at-once", "release/twice", "exclusion/one-holder", "watch/wakes-all",
		"watch/every-release",
	},
	may: []string{"*"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
			it, ok := f.get(key)
			return ok && it.token == token
		})
	},
}, {
	name: "state of a lock in the Locker that acquired it",
	must: []string{"release/from-another-client"},
	alter: func(f *fake) {
		var mine sync.Map
		acquire, extend, release := f.acquire, f.extend, f.release
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := acquire(ctx, key, token, ttl)
			if ok {
				mine.Store(key+token, true)
			}
			return ok, err
		}
		wait := f.wait
		f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
			mine.Store(key+token, true)
			return wait(ctx, key, token, ttl)
		}
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if _, ok := mine.Load(key + token); !ok && ctx.Err() == nil {
				return false, nil
			}
			return extend(ctx, key, token, ttl)
		}
		f.release = func(ctx context.Context, key, token string) (bool, error) {
			if _, ok := mine.Load(key + token); !ok && ctx.Err() == nil {
				return false, nil
			}
			return release(ctx, key, token)
		}
	},
}, {
	name: "its own token is refused",
	must: []string{
		"sametoken/again", "sametoken/counts-from-the-last", "sametoken/after-loss",
		"sametoken/never-refused", "names/any-token",
	},
	may: []string{"release/from-another-client", "wait/free-at-once", "fence/grows"},
	alter: func(f *fake) {
		f.acquires(func(key, token string, ttl time.Duration) bool { return f.setNX(key, token, ttl) })
	},
}, {
	name: "its own token is recognised, and its expiry stays",
	must: []string{"sametoken/counts-from-the-last"},
	alter: func(f *fake) {
		f.acquires(func(key, token string, ttl time.Duration) bool {
			if it, ok := f.get(key); ok && it.token == token {
				return true
			}
			return f.store.acquire(key, token, ttl)
		})
	},
}, {
	name: "a token that once acquired is let in again",
	must: []string{"sametoken/after-loss", "exclusion/one-holder"},
	may:  []string{"fence/only-the-holder"},
	alter: func(f *fake) {
		var mine sync.Map
		acquire := f.acquire
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
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
	name: "its own token, while an attempt is under way, is read as another's",
	must: []string{"sametoken/never-refused"},
	alter: func(f *fake) {
		var busy sync.Map
		acquire := f.acquire
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if _, ok := busy.LoadOrStore(key+token, true); ok {
				return false, nil
			}
			defer busy.Delete(key + token)
			pause()
			return acquire(ctx, key, token, ttl)
		}
	},
}}
