// Package bytecache has what the cache stores of the adapters share.
package bytecache

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Ceil returns how many units d lasts, rounded up.
func Ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

// LoadKey returns the key on Redis that has the load of the value at key. A Cluster or Ring keeps both
// on one server, as their hash tags are the same. It is empty if there is no such key, which single
// excludes: that all keys are on one server.
func LoadKey(key string, single bool) string {
	const mark = "!load:"
	closed := strings.IndexByte(key, '}')
	if closed < 0 {
		return mark + "{" + key + "}"
	}
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return mark + "{" + tag + "}" + key
		}
	}
	if single {
		return mark + key
	}
	return ""
}

// ErrNoLoad is the error of a slot whose key has no load.
var ErrNoLoad = fmt.Errorf("the key has no load beside it: %w", errors.ErrUnsupported)
