package memcache

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
)

// maxKey is the length of the longest key in bytes that memcached and its client take.
const maxKey = 250

// itemKey returns the key of the lock's item: prefix and name if memcached accepts them, and
// otherwise a hash of both, which begins with a different byte from prefix. So two names never
// share a key, whatever the prefix.
func itemKey(prefix, name string) string {
	key := prefix + name
	if plain(key) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	mark := "#sha256:"
	if prefix[0] == '#' {
		mark = "%sha256:"
	}
	return mark + hex.EncodeToString(sum[:])
}

// plain reports whether key can be sent as it is. The server refuses only keys that are too long
// and spaces, line ends and NUL. The client also refuses the other control characters of ASCII, and
// versions of it that read replies with fmt.Sscanf end the key at any Unicode space.
func plain(key string) bool {
	return len(key) <= maxKey && !strings.ContainsFunc(key, func(r rune) bool {
		return r <= ' ' || r == 0x7f || unicode.IsSpace(r)
	})
}
