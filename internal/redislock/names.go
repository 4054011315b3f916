// Package redislock is the part of the Redis adapters that does not depend on their client library:
// the scripts, the names of keys and channels, the formats of requests, replies and messages, and
// waiting in the queue. The adapters that use it share their queues.
package redislock

import (
	"crypto/rand"
	"fmt"
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
	Queue string // of the lock's waiters; empty if it cannot share the lock's slot

	permits *permitKeys // instead of a lock, several that share the queue; nil: one lock
}

// permitKeys are the keys of a script for permits.
type permitKeys struct {
	queue string
	locks []string
}

// of returns the script for these keys.
func (k Keys) of(forLock, forPermits Script) Script {
	if k.permits != nil {
		return forPermits
	}
	return forLock
}

// Keys returns the keys of the lock named key. They are on the same server: if a key's name has a
// hash tag, the characters between its first { and the } after it, only the tag decides where
// Cluster and Ring keep the key.
//
// A key that has a } but no tag cannot be a tag itself. On a single server that does not matter.
func (n *Namespace) Keys(key string) Keys {
	// One string holds both names in the usual case.
	queue := n.mark + "queue:" + n.scope + "{" + n.prefix + key + "}"
	lock := queue[len(queue)-len(n.prefix)-len(key)-1 : len(queue)-1]
	if strings.IndexByte(lock, '}') < 0 {
		return Keys{Lock: lock, Queue: queue}
	}
	tag, ok := hashTag(lock)
	if !ok && !n.single {
		return Keys{Lock: lock}
	}
	return Keys{Lock: lock, Queue: n.mark + "queue:" + n.scope + "{" + tag + "}" + lock}
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

// channel returns the name of a channel with an identifier. The scripts make the same name from that
// of a queue.
func (n *Namespace) channel(id string) string { return n.mark + "wait:" + n.scope + id }
