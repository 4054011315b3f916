package redislock

// The names of keys and channels.

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// DefaultPrefix is the default prefix of the locks' keys.
const DefaultPrefix = "locker:"

// Namespace makes the names of all keys and channels for the locks of one prefix.
type Namespace struct {
	prefix string // of the locks' keys
	mark   string // the first byte of all other names
	scope  string // the prefix, escaped, as a part of the other names
	single bool   // all keys are on one server
}

// NewNamespace returns the names for a prefix. On a single server every name has a queue.
func NewNamespace(prefix string, single bool) *Namespace {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	n := &Namespace{prefix: prefix, mark: "!", scope: escape(prefix), single: single}
	if strings.HasPrefix(prefix, n.mark) {
		n.mark = "#"
	}
	return n
}

// escape returns a string that can be part of a channel's name, and of an ACL pattern that matches
// only that name: it has no space, no hash tag and no wildcard. Different strings stay different.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(":._-/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Keys are the Redis keys of one lock.
type Keys struct {
	Lock  string
	Queue string // of the processes that wait; empty if it cannot share the lock's slot

	permits []string // instead of a lock, several that share the queue
	name    string   // of the lock, or of the semaphore
}

// locks returns how many locks share the queue.
func (k Keys) locks() int { return max(len(k.permits), 1) }

// Keys returns the keys of the lock named key. They are on the same server: if a key's name has a
// hash tag, the characters between its first { and the } after it, only the tag decides where
// Cluster and Ring keep the key.
//
// A key that has a } but no tag cannot be a tag itself. On a single server that does not matter.
func (n *Namespace) Keys(key string) Keys {
	// One string holds both names in the usual case.
	queue := n.mark + "line:" + n.scope + "{" + n.prefix + key + "}"
	lock := queue[len(queue)-len(n.prefix)-len(key)-1 : len(queue)-1]
	if strings.IndexByte(lock, '}') < 0 {
		return Keys{Lock: lock, Queue: queue, name: key}
	}
	tag, ok := hashTag(lock)
	if !ok && !n.single {
		return Keys{Lock: lock, name: key}
	}
	return Keys{Lock: lock, Queue: n.mark + "line:" + n.scope + "{" + tag + "}" + lock, name: key}
}

// hashTag returns the part of a key that decides where the key is kept, if it has one.
func hashTag(key string) (tag string, ok bool) {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return "", false
	}
	tag, _, ok = strings.Cut(rest, "}")
	if !ok {
		return "", false
	}
	return tag, tag != ""
}

// FenceCounter returns the key of the counter of fencing numbers.
func (n *Namespace) FenceCounter() string { return n.mark + "fence:" + n.scope }

// NewChannel returns an unguessable name for the channel of a process's waiters.
func (n *Namespace) NewChannel() string { return n.channel(rand.Text()) }

// channel returns the name of a channel with an identifier. want.lua makes the same name from that of
// a queue.
func (n *Namespace) channel(id string) string { return n.mark + "wait:" + n.scope + id }

// entryID returns a name for an entry in a queue, by which its process finds the keys again. It is
// unique in the process.
func (n *Namespace) entryID(number uint64, k Keys) string {
	return strconv.FormatUint(number, 36) + "." + strconv.Itoa(len(k.permits)) + "." + escape(k.name)
}

// keysOf returns the keys for an ID of [Namespace.entryID].
func (n *Namespace) keysOf(id string) (k Keys, ok bool) {
	parts := strings.SplitN(id, ".", 3)
	if len(parts) != 3 {
		return k, false
	}
	count, err := strconv.Atoi(parts[1])
	name, err2 := url.PathUnescape(parts[2])
	switch {
	case err != nil || err2 != nil || count < 0 || count > maxPermits:
		return k, false
	case count > 0:
		k = n.permits(name, count)
	default:
		k = n.Keys(name)
	}
	return k, k.Queue != ""
}
