package mutants

import (
	"context"
	"encoding/hex"
	"iter"
	"path"
	"slices"
	"time"

	"github.com/golockers/locker"
)

// aside lets mutants that are wrong about locks themselves do anything in the checks of Inspect and
// List, which are proved by mutants of their own.
func aside(list []Mutant) []Mutant {
	for i := range list {
		list[i].May = append(slices.Clone(list[i].May), "inspect/*", "list/*")
	}
	return list
}

// shows changes what Inspect and List report.
func (f *Fake) shows(change func(info locker.Info) locker.Info) {
	inspect, list := f.OnInspect, f.OnList
	f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
		info, err := inspect(ctx, key)
		if err != nil {
			return info, err
		}
		return change(info), nil
	}
	f.OnList = func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
		return func(yield func(locker.Info, error) bool) {
			for info, err := range list(ctx, prefix) {
				if err == nil {
					info = change(info)
				}
				if !yield(info, err) {
					return
				}
			}
		}
	}
}

// beside does something before each inspection.
func (f *Fake) beside(do func(key string)) {
	inspect := f.OnInspect
	f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
		if ctx.Err() == nil {
			do(key)
		}
		return inspect(ctx, key)
	}
}

// owns returns a map, guarded by mu, of the tokens with which this Locker has been called.
func (f *Fake) owns() map[string]bool {
	own := make(map[string]bool)
	note := func(token string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		own[token] = true
	}
	acquire, wait := f.OnAcquire, f.OnWait
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		note(token)
		return acquire(ctx, key, token, ttl)
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		note(token)
		return wait(ctx, key, token, ttl)
	}
	return own
}

func inspectMutants() []Mutant {
	about := []string{"inspect/*", "list/*", "wait/*"}
	mutant := func(name string, alter func(f *Fake), must ...string) Mutant {
		return Mutant{Name: name, Only: about, Must: must, May: []string{"inspect/*", "list/*"}, Alter: alter}
	}
	return []Mutant{
		mutant("inspect: the TTL is rounded up to seconds", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info {
				i.TTL = (i.TTL + time.Second - 1).Truncate(time.Second)
				return i
			})
		}, "inspect/holder", "list/prefix"),
		mutant("inspect: the TTL is that of the acquisition", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info {
				f.mu.Lock()
				defer f.mu.Unlock()
				if i.Token != "" {
					i.TTL = f.lastTTL[i.Key]
				}
				return i
			})
		}, "inspect/holder"),
		mutant("inspect: the TTL in another unit", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info { i.TTL /= 1000; return i })
		}, "inspect/holder", "list/prefix", "list/concurrent"),
		mutant("inspect: the token of the queue's head", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info {
				f.mu.Lock()
				defer f.mu.Unlock()
				if queue := f.queues[i.Key]; len(queue) > 0 {
					i.Token = queue[0].token
				}
				return i
			})
		}, "inspect/queue"),
		mutant("inspect: the holder is one of the waiters", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info { i.Waiters++; return i })
		}, "inspect/queue"),
		mutant("inspect: waiters that have left are counted", func(f *Fake) {
			most := make(map[string]int)
			f.shows(func(i locker.Info) locker.Info {
				f.mu.Lock()
				defer f.mu.Unlock()
				most[i.Key] = max(most[i.Key], i.Waiters)
				i.Waiters = most[i.Key]
				return i
			})
		}, "inspect/queue"),
		mutant("inspect: extends the lock", func(f *Fake) {
			f.beside(func(key string) {
				if it, ok := f.get(key); ok {
					f.store.extend(key, it.token, time.Minute)
				}
			})
		}, "inspect/no-side-effects", "inspect/expiry"),
		mutant("inspect: takes a free lock", func(f *Fake) {
			f.beside(func(key string) { f.setNX(key, "inspector", time.Minute) })
		}, "inspect/holder", "inspect/no-side-effects"),
		mutant("inspect: the queue is served out of turn", func(f *Fake) {
			f.beside(func(key string) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(f.queues[key]) > 1 {
					f.grant(key, f.queues[key][0])
				}
			})
		}, "inspect/queue"),
		mutant("inspect: locks that have expired are held", func(f *Fake) {
			f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				info := f.infoLocked(key)
				if it, ok := f.items[key]; ok {
					info.Token = it.token
				}
				return info, ctx.Err()
			}
		}, "inspect/expiry", "inspect/context"),
		mutant("inspect: the locks of this Locker only", func(f *Fake) {
			mine := make(map[string]bool)
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				f.mu.Lock()
				defer f.mu.Unlock()
				mine[token] = mine[token] || ok
				return ok, err
			}
			f.shows(func(i locker.Info) locker.Info {
				f.mu.Lock()
				defer f.mu.Unlock()
				if !mine[i.Token] {
					i.Token = ""
				}
				return i
			})
		}, "inspect/from-another-client", "inspect/break"),
		mutant("inspect: the token as it is stored", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info { i.Token = hex.EncodeToString([]byte(i.Token)); return i })
		}, "inspect/holder", "inspect/any-name", "inspect/break"),
		mutant("inspect: the token up to a NUL", func(f *Fake) {
			f.shows(func(i locker.Info) locker.Info { i.Token = upToNUL(i.Token); return i })
		}, "inspect/any-name"),
		mutant("inspect: the key cleaned as a path", func(f *Fake) {
			inspect := f.OnInspect
			f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
				info, err := inspect(ctx, path.Clean(key))
				info.Key = key
				return info, err
			}
		}, "inspect/any-name"),
		mutant("inspect: without the key", func(f *Fake) {
			inspect := f.OnInspect
			f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
				info, err := inspect(ctx, key)
				info.Key = ""
				return info, err
			}
		}, "inspect/holder", "inspect/context"),
		mutant("inspect: a holder beside an error", func(f *Fake) {
			f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) { return f.inspect(key), ctx.Err() }
		}, "inspect/context"),
		mutant("inspect: ignores ctx", func(f *Fake) {
			f.OnInspect = func(_ context.Context, key string) (locker.Info, error) { return f.inspect(key), nil }
		}, "inspect/context"),
		mutant("inspect: a break that only forgets the lock", func(f *Fake) {
			own := f.owns()
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				it, ok := f.live(key)
				if !ok || it.token != token {
					return false
				}
				if delete(f.items, key); own[token] {
					f.free(key)
				}
				return true
			})
		}, "inspect/break-wakes"),
		mutant("inspect: only own locks can be broken", func(f *Fake) {
			own := f.owns()
			f.Releases(func(key, token string) bool {
				f.mu.Lock()
				mine := own[token]
				f.mu.Unlock()
				return mine && f.store.release(key, token)
			})
		}, "inspect/break", "inspect/break-wakes"),
	}
}
