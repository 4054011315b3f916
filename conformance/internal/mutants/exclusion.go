package mutants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// pause is the time between two steps that should be one: long enough for races.
func pause() { time.Sleep(time.Millisecond) }

// acquires makes do the Acquire of f, with correct handling of ctx.
func (f *Fake) acquires(do func(key, token string, ttl time.Duration) bool) {
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token, ttl)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

func (f *Fake) extends(do func(key, token string, ttl time.Duration) bool) {
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token, ttl)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

func (f *Fake) Releases(do func(key, token string) bool) {
	f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

func exclusionMutants() []Mutant {
	return []Mutant{{
		Name: "acquire by set, whether or not it is there",
		Must: []string{
			"exclusion/one-holder", "exclusion/owner-is-token", "exclusion/race-for-free-key",
			"exclusion/race-for-expired-key", "exclusion/no-lost-update",
			"exclusion/contender-no-effect", "names/independent", "names/exact-keys",
			"release/owner-only", "expiry/never-early", "expiry/any-ttl",
		},
		May: []string{"*"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool { f.set(key, token, ttl); return true })
		},
	}, {
		Name: "acquire by set, and a release by another token returns true",
		Must: []string{
			"exclusion/one-holder", "exclusion/owner-is-token", "exclusion/no-lost-update",
			"exclusion/race-for-free-key", "exclusion/race-for-expired-key",
			"exclusion/contender-no-effect", "names/independent", "names/exact-keys",
			"release/owner-only", "release/twice", "release/after-takeover",
		},
		May: []string{"*"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool { f.set(key, token, ttl); return true })
			f.Releases(func(key, token string) bool { f.store.release(key, token); return true })
		},
	}, {
		Name: "acquire by exists, then set",
		Must: []string{
			"exclusion/race-for-free-key", "exclusion/race-for-expired-key",
			"exclusion/no-lost-update",
		},
		May: []string{"fence/concurrent"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				if it, ok := f.get(key); ok && it.token != token {
					return false
				}
				pause()
				f.set(key, token, ttl)
				return true
			})
		},
	}, {
		Name: "owned by the client",
		Must: []string{
			"exclusion/owner-is-token", "exclusion/race-for-free-key",
			"exclusion/race-for-expired-key", "exclusion/no-lost-update", "names/exact-tokens",
			"extend/owner-only", "release/owner-only", "release/from-another-client",
			"fence/holder-only",
		},
		May: []string{"wait/*", "fence/concurrent"},
		Alter: func(f *Fake) {
			f.retokened(func(string) string { return fmt.Sprintf("client %d", f.ID) })
		},
	}, {
		Name: "acquire waits for the holder",
		Must: []string{"exclusion/one-attempt"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				for end := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
					if f.store.acquire(key, token, ttl) {
						return true
					}
					if time.Now().After(end) {
						return false
					}
				}
			})
		},
	}, {
		Name: "a held lock is an error",
		Must: []string{
			"exclusion/one-holder", "exclusion/owner-is-token", "names/independent", "names/exact-keys",
			"expiry/not-late", "release/owner-only",
		},
		May: []string{"*"},
		Alter: func(f *Fake) {
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if err := ctx.Err(); err != nil {
					return false, err
				}
				if !f.store.acquire(key, token, ttl) {
					return false, locker.ErrHeld
				}
				return true, nil
			}
		},
	}, {
		Name: "a refused extend or release is an error",
		Must: []string{
			"extend/after-release", "extend/after-expiry", "extend/owner-only",
			"release/owner-only", "release/twice", "release/after-expiry", "release/after-takeover",
			"sametoken/reacquire", "exclusion/owner-is-token", "names/independent", "names/exact-tokens",
		},
		May: []string{
			"names/any-key", "expiry/*", "extend/*", "release/*", "context/*", "wait/*",
			"watch/no-missed-release",
		},
		Alter: func(f *Fake) {
			extend, release := f.OnExtend, f.OnRelease
			f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := extend(ctx, key, token, ttl)
				if !ok && err == nil {
					err = errors.New("lock already taken")
				}
				return ok, err
			}
			f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
				ok, err := release(ctx, key, token)
				if !ok && err == nil {
					err = errors.New("lock already taken")
				}
				return ok, err
			}
		},
	}, {
		Name: "a panic where nothing is held",
		Must: []string{
			"release/owner-only", "release/twice", "release/after-expiry", "release/after-takeover",
			"sametoken/reacquire", "exclusion/owner-is-token", "names/independent", "names/exact-tokens",
		},
		May: []string{"*"},
		Alter: func(f *Fake) {
			f.Releases(func(key, token string) bool {
				if !f.store.release(key, token) {
					panic("unlock of unlocked lock")
				}
				return true
			})
		},
	}, {
		Name: "client's clock: one is ten seconds ahead",
		Must: []string{
			"expiry/never-early", "exclusion/contender-no-effect", "extend/keep-alive",
			"extend/shorter",
		},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			now := func() time.Time {
				if f.ID == 1 {
					return time.Now().Add(10 * time.Second)
				}
				return time.Now()
			}
			f.acquires(func(key, token string, ttl time.Duration) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if it, ok := f.items[key]; ok && now().Before(it.expires) && it.token != token {
					return false
				}
				f.items[key] = item{token, now().Add(ttl)}
				return true
			})
		},
	}, {
		Name: "client's clock: expiry as an absolute time, and the server is ten seconds ahead",
		Must: []string{"expiry/never-early", "expiry/not-late", "extend/after-takeover"},
		May:  []string{"expiry/*", "sametoken/*", "wait/*", "fence/*"},
		Alter: func(f *Fake) {
			if f.ID != 1 {
				return
			}
			f.acquires(func(key, token string, ttl time.Duration) bool {
				return f.store.acquire(key, token, ttl-10*time.Second)
			})
		},
	}, {
		Name: "takeover by delete, then set if absent",
		Must: []string{"exclusion/race-for-expired-key"},
		May: []string{
			"expiry/takeover-ownership", "sametoken/concurrent", "extend/atomic", "release/atomic",
			"fence/stale-holder",
		},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				f.mu.Lock()
				it, there := f.items[key]
				f.mu.Unlock()
				if there && it.token != token && time.Now().Before(it.expires) {
					return false
				}
				if there {
					pause()
					f.mu.Lock()
					delete(f.items, key) // whoever holds it by now
					f.mu.Unlock()
				}
				return f.setNX(key, token, ttl)
			})
		},
	}, {
		Name: "takeover by classic GETSET",
		Must: []string{"expiry/takeover-ownership"},
		May:  []string{"exclusion/race-for-expired-key"},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				f.mu.Lock()
				it, there := f.items[key]
				if !there {
					f.items[key] = item{token, time.Now().Add(ttl)}
				}
				f.mu.Unlock()
				switch {
				case !there:
					return true
				case it.token == token && time.Now().Before(it.expires):
					return f.store.acquire(key, token, ttl)
				case time.Now().Before(it.expires):
					return false
				}
				pause()
				f.mu.Lock()
				defer f.mu.Unlock()
				old := f.items[key]
				f.items[key] = item{token, time.Now().Add(ttl)}
				return !time.Now().Before(old.expires)
			})
		},
	}, {
		Name: "empty GET read as expired",
		Must: []string{"exclusion/no-lost-update"},
		May: []string{
			"exclusion/race-for-free-key", "exclusion/race-for-expired-key",
			"expiry/takeover-ownership", "sametoken/concurrent", "fence/concurrent", "watch/no-missed-release",
		},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				if f.setNX(key, token, ttl) {
					return true
				}
				pause()
				it, ok := f.get(key)
				if ok && it.token == token {
					return f.store.acquire(key, token, ttl)
				}
				if ok {
					return false
				}
				pause()
				f.mu.Lock()
				defer f.mu.Unlock()
				old, ok := f.live(key)
				f.items[key] = item{token, time.Now().Add(ttl)}
				return !ok || old.token == token
			})
		},
	}, {
		Name: "every refused attempt extends the holder's lock",
		Must: []string{
			"exclusion/contender-no-effect", "expiry/not-late", "extend/shorter",
			"extend/longer",
		},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				if f.store.acquire(key, token, ttl) {
					return true
				}
				if it, ok := f.get(key); ok {
					f.store.extend(key, it.token, max(ttl, time.Until(it.expires)))
				}
				return false
			})
		},
	}, {
		Name: "SETNX, then EXPIRE by losers as well",
		Must: []string{
			"exclusion/contender-no-effect", "expiry/not-late", "extend/shorter",
			"extend/longer",
		},
		May: []string{
			"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
			"watch/*", "context/*",
		},
		Alter: func(f *Fake) {
			f.acquires(func(key, token string, ttl time.Duration) bool {
				if f.store.acquire(key, token, ttl) {
					return true
				}
				f.expire(key, ttl)
				return false
			})
		},
	}}
}
