// Package redisscan enumerates the locks on Redis servers, for any client library and any format
// of locks.
package redisscan

import (
	"strings"

	"github.com/golockers/locker"
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
			for _, key := range page.Keys {
				name := strings.TrimPrefix(key, l.KeyPrefix)
				if _, ok := seen[key]; ok || name == "" { // no lock has an empty name
					continue
				}
				seen[key] = struct{}{}
				info, err := l.Inspect(name)
				switch {
				case err != nil && !l.IsForeign(err):
					yield(locker.Info{}, err)
					return
				case (err != nil || info.Token != "") && !yield(info, err):
					return
				}
			}
			if cursor = page.Next; cursor == 0 {
				break
			}
		}
	}
}

// globs escapes the characters that have a meaning in a pattern.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
