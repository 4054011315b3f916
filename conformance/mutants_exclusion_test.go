package conformance

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"html"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// pause is the time between two steps that should be one: long enough for a race to be won now and then.
func pause() { time.Sleep(time.Millisecond) }

// acquires makes an Acquire of what a backend does, which minds ctx as it should.
func (f *fake) acquires(do func(key, token string, ttl time.Duration) bool) {
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token, ttl)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

func (f *fake) extends(do func(key, token string, ttl time.Duration) bool) {
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token, ttl)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

func (f *fake) releases(do func(key, token string) bool) {
	f.release = func(ctx context.Context, key, token string) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok := do(key, token)
		return ok && ctx.Err() == nil, ctx.Err()
	}
}

var exclusionMutants = []mutant{{
	name: "acquire by set, whether or not it is there",
	must: []string{
		"exclusion/one-holder", "exclusion/owner-is-the-token", "exclusion/one-winner-on-a-free-key",
		"exclusion/one-winner-on-an-expired-key", "exclusion/no-lost-update",
		"exclusion/refused-attempts-cost-nothing", "names/independent", "names/exact",
		"release/only-the-owner", "expiry/never-early", "expiry/any-ttl",
	},
	may: []string{"*"},
	alter: func(f *fake) {
		f.acquires(func(key, token string, ttl time.Duration) bool { f.set(key, token, ttl); return true })
	},
}, {
	name: "acquire by set, and a release of what is not its own says true",
	must: []string{
		"exclusion/one-holder", "exclusion/owner-is-the-token", "exclusion/no-lost-update",
		"exclusion/one-winner-on-a-free-key", "exclusion/one-winner-on-an-expired-key",
		"exclusion/refused-attempts-cost-nothing", "names/independent", "names/exact",
		"release/only-the-owner", "release/twice", "release/after-takeover",
	},
	may: []string{"*"},
	alter: func(f *fake) {
		f.acquires(func(key, token string, ttl time.Duration) bool { f.set(key, token, ttl); return true })
		f.releases(func(key, token string) bool { f.store.release(key, token); return true })
	},
}, {
	name: "acquire by exists, then set",
	must: []string{
		"exclusion/one-winner-on-a-free-key", "exclusion/one-winner-on-an-expired-key",
		"exclusion/no-lost-update",
	},
	may: []string{"fence/in-order"},
	alter: func(f *fake) {
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
	name: "owned by the client",
	must: []string{
		"exclusion/owner-is-the-token", "exclusion/one-winner-on-a-free-key",
		"exclusion/one-winner-on-an-expired-key", "exclusion/no-lost-update", "names/exact-tokens",
		"extend/only-the-owner", "release/only-the-owner", "release/from-another-client",
		"fence/only-the-holder",
	},
	may: []string{"wait/*", "fence/in-order"},
	alter: func(f *fake) {
		f.retokened(func(string) string { return fmt.Sprintf("client %d", f.id) })
	},
}, {
	name: "acquire waits for the holder",
	must: []string{"exclusion/one-attempt"},
	alter: func(f *fake) {
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
	name: "a held lock is an error",
	must: []string{
		"exclusion/one-holder", "exclusion/owner-is-the-token", "names/independent", "names/exact",
		"expiry/not-late", "release/only-the-owner",
	},
	may: []string{"*"},
	alter: func(f *fake) {
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
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
	name: "a lock that is not held is an error, and says taken",
	must: []string{
		"extend/after-release", "extend/after-expiry", "extend/only-the-owner",
		"release/only-the-owner", "release/twice", "release/after-expiry", "release/after-takeover",
		"sametoken/again", "exclusion/owner-is-the-token", "names/independent", "names/exact-tokens",
	},
	may: []string{
		"names/any", "expiry/*", "extend/*", "release/*", "context/*", "wait/*",
		"watch/no-missed-release",
	},
	alter: func(f *fake) {
		extend, release := f.extend, f.release
		f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := extend(ctx, key, token, ttl)
			if !ok && err == nil {
				err = errors.New("lock already taken")
			}
			return ok, err
		}
		f.release = func(ctx context.Context, key, token string) (bool, error) {
			ok, err := release(ctx, key, token)
			if !ok && err == nil {
				err = errors.New("lock already taken")
			}
			return ok, err
		}
	},
}, {
	name: "a panic where nothing is held",
	must: []string{
		"release/only-the-owner", "release/twice", "release/after-expiry", "release/after-takeover",
		"sametoken/again", "exclusion/owner-is-the-token", "names/independent", "names/exact-tokens",
	},
	may: []string{"*"},
	alter: func(f *fake) {
		f.releases(func(key, token string) bool {
			if !f.store.release(key, token) {
				panic("unlock of unlocked lock")
			}
			return true
		})
	},
}, {
	name: "own clock: one client's is ten seconds ahead",
	must: []string{
		"expiry/never-early", "exclusion/refused-attempts-cost-nothing", "extend/keeps-alive",
		"extend/shorter",
	},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		now := func() time.Time {
			if f.id == 1 {
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
	name: "own clock: expiry as an absolute time that the server, ten seconds ahead, has behind it",
	must: []string{"expiry/never-early", "expiry/not-late", "extend/after-takeover"},
	may:  []string{"expiry/*", "sametoken/*", "wait/*", "fence/*"},
	alter: func(f *fake) {
		if f.id != 1 {
			return
		}
		f.acquires(func(key, token string, ttl time.Duration) bool {
			return f.store.acquire(key, token, ttl-10*time.Second)
		})
	},
}, {
	name: "take-over by delete, then set if absent",
	must: []string{"exclusion/one-winner-on-an-expired-key"},
	may: []string{
		"expiry/winner-owns", "sametoken/never-refused", "extend/atomic", "release/atomic",
		"fence/stale-holder",
	},
	alter: func(f *fake) {
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
				delete(f.items, key) // whatever it is by now
				f.mu.Unlock()
			}
			return f.setNX(key, token, ttl)
		})
	},
}, {
	name: "take-over by classic GETSET",
	must: []string{"expiry/winner-owns"},
	may:  []string{"exclusion/one-winner-on-an-expired-key"},
	alter: func(f *fake) {
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
	name: "empty GET read as expired",
	must: []string{"exclusion/no-lost-update"},
	may: []string{
		"exclusion/one-winner-on-a-free-key", "exclusion/one-winner-on-an-expired-key",
		"expiry/winner-owns", "sametoken/never-refused", "fence/in-order", "watch/no-missed-release",
	},
	alter: func(f *fake) {
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
	name: "every failed try renews the holder's expiry",
	must: []string{
		"exclusion/refused-attempts-cost-nothing", "expiry/not-late", "extend/shorter",
		"extend/longer",
	},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
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
	name: "SETNX, then EXPIRE for losers too",
	must: []string{
		"exclusion/refused-attempts-cost-nothing", "expiry/not-late", "extend/shorter",
		"extend/longer",
	},
	may: []string{
		"exclusion/*", "expiry/*", "extend/*", "release/*", "sametoken/*", "wait/*", "fence/*",
		"watch/*", "context/*",
	},
	alter: func(f *fake) {
		f.acquires(func(key, token string, ttl time.Duration) bool {
			if f.store.acquire(key, token, ttl) {
				return true
			}
			f.expire(key, ttl)
			return false
		})
	},
}}

// renamed changes the names under which a fake keeps its locks.
func (f *fake) renamed(name func(key string) string) {
	g := newFake(f.store, f.id)
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return g.acquire(ctx, name(key), token, ttl)
	}
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return g.extend(ctx, name(key), token, ttl)
	}
	f.release = func(ctx context.Context, key, token string) (bool, error) { return g.release(ctx, name(key), token) }
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) { return g.watch(ctx, name(key)) }
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		return g.wait(ctx, name(key), token, ttl)
	}
	f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
		return g.fence(ctx, name(key), token)
	}
}

// retokened changes the tokens that a fake stores and compares.
func (f *fake) retokened(token func(token string) string) {
	g := newFake(f.store, f.id)
	f.acquire = func(ctx context.Context, key, t string, ttl time.Duration) (bool, error) {
		return g.acquire(ctx, key, token(t), ttl)
	}
	f.extend = func(ctx context.Context, key, t string, ttl time.Duration) (bool, error) {
		return g.extend(ctx, key, token(t), ttl)
	}
	f.release = func(ctx context.Context, key, t string) (bool, error) { return g.release(ctx, key, token(t)) }
	f.wait = func(ctx context.Context, key, t string, ttl time.Duration) (time.Time, error) {
		return g.wait(ctx, key, token(t), ttl)
	}
	f.fence = func(ctx context.Context, key, t string) (uint64, bool, error) { return g.fence(ctx, key, token(t)) }
}

func clip(n int) func(string) string {
	return func(s string) string { return s[:min(n, len(s))] }
}

func upToNUL(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return s + " "
}

// foldSeparators makes one of separators that follow each other.
func foldSeparators(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if i == 0 || s[i] != s[i-1] || !strings.ContainsRune(":/.-_|", rune(s[i])) {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// unescaped leaves what is not escaped as it is.
func unescaped(unescape func(string) (string, error)) func(string) string {
	return func(s string) string {
		if u, err := unescape(s); err == nil {
			return u
		}
		return s
	}
}

func fnv32a(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	return fmt.Sprint(h.Sum32())
}

func crc(s string) string { return fmt.Sprint(crc32.ChecksumIEEE([]byte("locker:" + s))) }

// picky refuses names or tokens of a kind, as some backends do.
func (f *fake) picky(refuses func(key, token string) bool) {
	acquire, wait, watch := f.acquire, f.wait, f.watch
	err := errors.New("malformed: key is too long or contains invalid characters")
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if refuses(key, token) {
			return false, err
		}
		return acquire(ctx, key, token, ttl)
	}
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if refuses(key, token) {
			return time.Time{}, err
		}
		return wait(ctx, key, token, ttl)
	}
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if refuses(key, "") {
			return nil, err
		}
		return watch(ctx, key)
	}
}

// justNames are the checks that a mutant can fail which keeps all locks as it should, but for their names.
var justNames = []string{"names/*", "watch/any-name", "wait/any-name"}

// asFloat reads what is a number as one.
func asFloat(s string) string {
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return s
}

// asInt reads what is a whole number, in any base that Go writes, as one.
func asInt(s string) string {
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return strconv.FormatInt(v, 10)
	}
	return s
}

var nameMutants = []mutant{
	{name: "one lock for all keys that begin alike",
		must:  []string{"names/exact", "names/hashed", "names/bookkeeping"},
		may:   []string{"watch/any-name", "wait/any-name"},
		alter: func(f *fake) { f.renamed(clip(20)) }},
	{name: "key cut at 250 bytes",
		must:  []string{"names/exact", "names/bookkeeping"},
		may:   []string{"watch/any-name", "wait/any-name"},
		alter: func(f *fake) { f.renamed(clip(250)) }},
	{name: "key cut at NUL",
		must:  []string{"names/exact", "names/bookkeeping"},
		may:   []string{"watch/any-name", "wait/any-name"},
		alter: func(f *fake) { f.renamed(upToNUL) }},
	{name: "key in lower case",
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(strings.ToLower) }},
	{name: "key trimmed",
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(strings.TrimSpace) }},
	{name: "separators that are repeated count once",
		only:  justNames,
		must:  []string{"names/exact"},
		may:   []string{"names/bookkeeping"},
		alter: func(f *fake) { f.renamed(foldSeparators) }},
	{name: "separators at the end are cut off",
		only:  justNames,
		must:  []string{"names/exact"},
		may:   []string{"names/bookkeeping"},
		alter: func(f *fake) { f.renamed(func(s string) string { return strings.TrimRight(s, ":/.") }) }},
	{name: "separators at the beginning are cut off",
		only:  justNames,
		must:  []string{"names/exact"},
		may:   []string{"names/bookkeeping"},
		alter: func(f *fake) { f.renamed(func(s string) string { return strings.TrimLeft(s, ":/.") }) }},
	{name: "empty segments are dropped",
		only: justNames,
		must: []string{"names/exact"},
		may:  []string{"names/bookkeeping"},
		alter: func(f *fake) {
			f.renamed(func(s string) string {
				return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ':' }), ":")
			})
		}},
	{name: "key cleaned as a path",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(func(s string) string { return path.Clean("/" + s) }) }},
	{name: "key unescaped as in a URL's path",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(unescaped(url.PathUnescape)) }},
	{name: "key unescaped as in a URL's query",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(unescaped(url.QueryUnescape)) }},
	{name: "key unescaped as HTML",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(html.UnescapeString) }},
	{name: "characters that are not seen are dropped from the key",
		only: justNames,
		must: []string{"names/exact"},
		alter: func(f *fake) {
			f.renamed(strings.NewReplacer("\u200b", "", "\u00ad", "", "\ufeff", "").Replace)
		}},
	{name: "keys that are numbers compared as floats",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(asFloat) }},
	{name: "keys that are whole numbers compared as such",
		only:  justNames,
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(asInt) }},
	{name: "separators that are repeated in a token count once",
		only:  justNames,
		must:  []string{"names/exact-tokens"},
		alter: func(f *fake) { f.retokened(foldSeparators) }},
	{name: "token unescaped as in a URL's path",
		only:  justNames,
		must:  []string{"names/exact-tokens"},
		alter: func(f *fake) { f.retokened(unescaped(url.PathUnescape)) }},
	{name: "key made valid UTF-8",
		must:  []string{"names/exact"},
		alter: func(f *fake) { f.renamed(func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }) }},
	{name: "key hashed to 32 bits by FNV-1a",
		must:  []string{"names/hashed"},
		alter: func(f *fake) { f.renamed(fnv32a) }},
	{name: "key hashed to 32 bits by CRC",
		must:  []string{"names/hashed"},
		alter: func(f *fake) { f.renamed(crc) }},
	{
		name: "long and unusual keys are refused",
		must: []string{"names/any", "names/exact", "names/bookkeeping", "watch/any-name", "wait/any-name"},
		alter: func(f *fake) {
			f.picky(func(key, _ string) bool { return len(key) > 243 || strings.ContainsAny(key, " \r\n\x00\x7f") })
		},
	},
	{name: "tokens over 255 bytes are refused",
		must:  []string{"names/any-token", "names/exact-tokens"},
		alter: func(f *fake) { f.picky(func(_, token string) bool { return len(token) > 255 }) }},
	{name: "token cut at 255 bytes",
		must:  []string{"names/exact-tokens"},
		alter: func(f *fake) { f.retokened(clip(255)) }},
	{name: "token in lower case",
		must:  []string{"names/exact-tokens"},
		alter: func(f *fake) { f.retokened(strings.ToLower) }},
	{name: "token trimmed",
		must:  []string{"names/exact-tokens"},
		alter: func(f *fake) { f.retokened(strings.TrimSpace) }},
	{name: "token cut at the codec's separator",
		must: []string{"names/exact-tokens"},
		alter: func(f *fake) {
			f.retokened(func(s string) string { return s[strings.LastIndexByte(s, ':')+1:] })
		}},
	{
		name: "token compared by prefix",
		must: []string{"names/exact-tokens"},
		alter: func(f *fake) {
			owner := func(key, token string) string {
				if it, ok := f.get(key); ok && strings.HasPrefix(it.token, token) {
					return it.token
				}
				return token
			}
			f.extends(func(key, token string, ttl time.Duration) bool { return f.store.extend(key, owner(key, token), ttl) })
			f.releases(func(key, token string) bool { return f.store.release(key, owner(key, token)) })
		},
	}, {
		name: "the fence counter is kept beside the lock, under a name that can be a lock's",
		must: []string{"names/bookkeeping"},
		alter: func(f *fake) {
			fence := f.fence
			f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
				n, ok, err := fence(ctx, key, token)
				if err == nil {
					f.set(key+":fence", fmt.Sprint(n), time.Minute)
				}
				return n, ok, err
			}
		},
	}, {
		name: "a release frees all locks whose names begin alike",
		must: []string{"names/exact", "names/hashed", "names/bookkeeping"},
		may:  []string{"*"},
		alter: func(f *fake) {
			f.releases(func(key, token string) bool {
				ok := f.store.release(key, token)
				if ok {
					f.mu.Lock()
					defer f.mu.Unlock()
					for k := range f.items {
						if strings.HasPrefix(k, clip(14)(key)) {
							f.free(k)
						}
					}
				}
				return ok
			})
		},
	},
}
