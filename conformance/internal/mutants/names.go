package mutants

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
)

// renamed changes the names under which f keeps its locks.
func (f *Fake) renamed(name func(key string) string) {
	g := NewFake(f.store, f.ID)
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return g.OnAcquire(ctx, name(key), token, ttl)
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return g.OnExtend(ctx, name(key), token, ttl)
	}
	f.OnRelease = func(ctx context.Context, key, token string) (bool, error) { return g.OnRelease(ctx, name(key), token) }
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) { return g.OnWatch(ctx, name(key)) }
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		return g.OnWait(ctx, name(key), token, ttl)
	}
	f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
		return g.OnFence(ctx, name(key), token)
	}
}

// retokened changes the tokens that f stores and compares.
func (f *Fake) retokened(token func(token string) string) {
	g := NewFake(f.store, f.ID)
	f.OnAcquire = func(ctx context.Context, key, t string, ttl time.Duration) (bool, error) {
		return g.OnAcquire(ctx, key, token(t), ttl)
	}
	f.OnExtend = func(ctx context.Context, key, t string, ttl time.Duration) (bool, error) {
		return g.OnExtend(ctx, key, token(t), ttl)
	}
	f.OnRelease = func(ctx context.Context, key, t string) (bool, error) { return g.OnRelease(ctx, key, token(t)) }
	f.OnWait = func(ctx context.Context, key, t string, ttl time.Duration) (time.Time, error) {
		return g.OnWait(ctx, key, token(t), ttl)
	}
	f.OnFence = func(ctx context.Context, key, t string) (uint64, bool, error) { return g.OnFence(ctx, key, token(t)) }
}

func clip(n int) func(string) string {
	return func(s string) string { return s[:min(n, len(s))] }
}

func upToNUL(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return s + " "
}

// foldSeparators replaces repeated separators with one.
func foldSeparators(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if i == 0 || s[i] != s[i-1] || !strings.ContainsRune(":/.-_|", rune(s[i])) {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// unescaped leaves malformed escapes as they are.
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

// picky refuses some names or tokens, as some backends do.
func (f *Fake) picky(refuses func(key, token string) bool) {
	acquire, wait, watch := f.OnAcquire, f.OnWait, f.OnWatch
	err := errors.New("malformed: key is too long or contains invalid characters")
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if refuses(key, token) {
			return false, err
		}
		return acquire(ctx, key, token, ttl)
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if refuses(key, token) {
			return time.Time{}, err
		}
		return wait(ctx, key, token, ttl)
	}
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if refuses(key, "") {
			return nil, err
		}
		return watch(ctx, key)
	}
}

// justNames are the checks that a mutant can fail if it only confuses names.
var justNames = []string{"names/*", "watch/any-key", "wait/any-key"}

// asFloat normalizes floating-point numbers.
func asFloat(s string) string {
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return s
}

// asInt normalizes integers in any base of Go's syntax.
func asInt(s string) string {
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return strconv.FormatInt(v, 10)
	}
	return s
}

func nameMutants() []Mutant {
	return []Mutant{
		{Name: "one lock for all keys that begin alike",
			Only:  justNames,
			Must:  []string{"names/exact-keys", "names/bookkeeping"},
			May:   []string{"watch/any-key", "wait/any-key"},
			Alter: func(f *Fake) { f.renamed(clip(20)) }},
		{Name: "key cut at 250 bytes",
			Only:  justNames,
			Must:  []string{"names/exact-keys", "names/bookkeeping"},
			May:   []string{"watch/any-key", "wait/any-key"},
			Alter: func(f *Fake) { f.renamed(clip(250)) }},
		{Name: "key cut at NUL",
			Only:  justNames,
			Must:  []string{"names/exact-keys", "names/bookkeeping"},
			May:   []string{"watch/any-key", "wait/any-key"},
			Alter: func(f *Fake) { f.renamed(upToNUL) }},
		{Name: "key in lower case",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(strings.ToLower) }},
		{Name: "key trimmed",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(strings.TrimSpace) }},
		{Name: "repeated separators are folded",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			May:   []string{"names/bookkeeping"},
			Alter: func(f *Fake) { f.renamed(foldSeparators) }},
		{Name: "trailing separators are trimmed",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			May:   []string{"names/bookkeeping"},
			Alter: func(f *Fake) { f.renamed(func(s string) string { return strings.TrimRight(s, ":/.") }) }},
		{Name: "leading separators are trimmed",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			May:   []string{"names/bookkeeping"},
			Alter: func(f *Fake) { f.renamed(func(s string) string { return strings.TrimLeft(s, ":/.") }) }},
		{Name: "empty segments are dropped",
			Only: justNames,
			Must: []string{"names/exact-keys"},
			May:  []string{"names/bookkeeping"},
			Alter: func(f *Fake) {
				f.renamed(func(s string) string {
					return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ':' }), ":")
				})
			}},
		{Name: "key cleaned as a path",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(func(s string) string { return path.Clean("/" + s) }) }},
		{Name: "key unescaped as in a URL's path",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(unescaped(url.PathUnescape)) }},
		{Name: "key unescaped as in a URL's query",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(unescaped(url.QueryUnescape)) }},
		{Name: "key unescaped as HTML",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(html.UnescapeString) }},
		{Name: "invisible characters are dropped from the key",
			Only: justNames,
			Must: []string{"names/exact-keys"},
			Alter: func(f *Fake) {
				f.renamed(strings.NewReplacer("\u200b", "", "\u00ad", "", "\ufeff", "").Replace)
			}},
		{Name: "keys that are numbers compared as floats",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(asFloat) }},
		{Name: "keys that are integers compared as such",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(asInt) }},
		{Name: "repeated separators in a token are folded",
			Only:  justNames,
			Must:  []string{"names/exact-tokens"},
			Alter: func(f *Fake) { f.retokened(foldSeparators) }},
		{Name: "token unescaped as in a URL's path",
			Only:  justNames,
			Must:  []string{"names/exact-tokens"},
			Alter: func(f *Fake) { f.retokened(unescaped(url.PathUnescape)) }},
		{Name: "key made valid UTF-8",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }) }},
		{Name: "key hashed to 32 bits by FNV-1a",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(fnv32a) }},
		{Name: "key hashed to 32 bits by CRC",
			Only:  justNames,
			Must:  []string{"names/exact-keys"},
			Alter: func(f *Fake) { f.renamed(crc) }},
		{
			Name: "long and unusual keys are refused",
			Only: justNames,
			Must: []string{"names/any-key", "names/exact-keys", "names/bookkeeping", "watch/any-key", "wait/any-key"},
			Alter: func(f *Fake) {
				f.picky(func(key, _ string) bool { return len(key) > 243 || strings.ContainsAny(key, " \r\n\x00\x7f") })
			},
		},
		{Name: "tokens over 255 bytes are refused",
			Only:  justNames,
			Must:  []string{"names/any-token", "names/exact-tokens"},
			Alter: func(f *Fake) { f.picky(func(_, token string) bool { return len(token) > 255 }) }},
		{Name: "token cut at 255 bytes",
			Only:  justNames,
			Must:  []string{"names/exact-tokens"},
			Alter: func(f *Fake) { f.retokened(clip(255)) }},
		{Name: "token in lower case",
			Only:  justNames,
			Must:  []string{"names/exact-tokens"},
			Alter: func(f *Fake) { f.retokened(strings.ToLower) }},
		{Name: "token trimmed",
			Only:  justNames,
			Must:  []string{"names/exact-tokens"},
			Alter: func(f *Fake) { f.retokened(strings.TrimSpace) }},
		{Name: "token cut at the codec's separator",
			Only: justNames,
			Must: []string{"names/exact-tokens"},
			Alter: func(f *Fake) {
				f.retokened(func(s string) string { return s[strings.LastIndexByte(s, ':')+1:] })
			}},
		{
			Name: "token compared by prefix",
			Only: justNames,
			Must: []string{"names/exact-tokens"},
			Alter: func(f *Fake) {
				owner := func(key, token string) string {
					if it, ok := f.get(key); ok && strings.HasPrefix(it.token, token) {
						return it.token
					}
					return token
				}
				f.extends(func(key, token string, ttl time.Duration) bool { return f.store.extend(key, owner(key, token), ttl) })
				f.Releases(func(key, token string) bool { return f.store.release(key, owner(key, token)) })
			},
		}, {
			Name: "the fence counter is kept beside the lock, under a name that can be a lock's",
			Must: []string{"names/bookkeeping"},
			Alter: func(f *Fake) {
				fence := f.OnFence
				f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
					n, ok, err := fence(ctx, key, token)
					if err == nil {
						f.set(key+":fence", fmt.Sprint(n), time.Minute)
					}
					return n, ok, err
				}
			},
		}, {
			Name: "a release frees all locks whose names begin alike",
			Must: []string{"names/exact-keys", "names/bookkeeping"},
			May:  []string{"*"},
			Alter: func(f *Fake) {
				f.Releases(func(key, token string) bool {
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
}
