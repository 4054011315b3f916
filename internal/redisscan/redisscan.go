// Package redisscan enumerates the locks on Redis servers, for any client library and any format
// of locks.
package redisscan

import (
	"slices"
	"strings"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
)

// Scan makes one SCAN request, for the keys that match a pattern.
type Scan func(cursor uint64, match string) (Page, error)

// Page is the reply.
type Page struct {
	Keys []string
	Next uint64 // cursor; 0: this was the last page
}

// Locks are the locks of a Locker.
type Locks struct {
	KeyPrefix string // of their keys on the servers
	Inspect   func(key string) (locker.Info, error)
	AtOnce    int                  // how many calls of Inspect run at the same time; 0: one
	IsForeign func(err error) bool // reports whether Inspect's error is about the value at the key alone
}

// List yields the locks that are held on the servers and whose names begin with prefix, each once
// although SCAN repeats itself.
func (l *Locks) List(prefix string, servers []Scan, yield func(locker.Info, error) bool) {
	match := globs.Replace(l.KeyPrefix+prefix) + "*"
	seen := make(map[string]struct{})
	for _, scan := range servers {
		for cursor := uint64(0); ; {
			page, err := scan(cursor, match)
			if err != nil {
				yield(locker.Info{}, err)
				return
			}
			var names []string
			for _, key := range page.Keys {
				name := strings.TrimPrefix(key, l.KeyPrefix)
				if _, ok := seen[key]; ok || name == "" { // no lock has an empty name
					continue
				}
				seen[key] = struct{}{}
				names = append(names, name)
			}
			for some := range slices.Chunk(names, max(l.AtOnce, 1)) {
				for _, lock := range l.inspect(some) {
					switch {
					case lock.err != nil && !l.IsForeign(lock.err):
						yield(locker.Info{}, lock.err)
						return
					case (lock.err != nil || lock.info.Token != "") && !yield(lock.info, lock.err):
						return
					}
				}
			}
			if cursor = page.Next; cursor == 0 {
				break
			}
		}
	}
}

type inspected struct {
	info locker.Info
	err  error
}

// inspect inspects the locks with these names at the same time. If a call panics, so does inspect.
func (l *Locks) inspect(names []string) []inspected {
	others := make([]*inflight.Apart[locker.Info], len(names)-1)
	for i := range others {
		others[i] = inflight.Go(func() (locker.Info, error) { return l.Inspect(names[i+1]) })
	}
	locks := make([]inspected, len(names))
	locks[0].info, locks[0].err = l.Inspect(names[0])
	for i, other := range others {
		locks[i+1].info, locks[i+1].err = other.Result()
	}
	return locks
}

// globs escapes the characters that have a meaning in a pattern.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
