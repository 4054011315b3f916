package redisv9

import "strings"

// names are the Redis keys of one lock.
type names struct {
	lock string
	line string // those who wait for it; empty where it cannot share the lock's slot
}

// names returns the keys of the lock named key. They are on the same server: where a key's name has a hash
// tag, the characters between its first { and the } after it, Cluster and Ring go by the tag alone.
//
// A key that has a } but no tag cannot be a tag itself. On a single server that does not matter.
func (l *Locker) names(key string) names {
	line := l.mark + "{" + l.prefix + key + "}line"
	lock := line[len(l.mark)+1 : len(line)-len("}line")]
	if strings.IndexByte(lock, '}') < 0 {
		return names{lock: lock, line: line}
	}
	if tag, ok := hashTag(lock); ok {
		return names{lock: lock, line: l.mark + "{" + tag + "}line:" + lock}
	}
	if l.alone {
		return names{lock: lock, line: l.mark + "{}line:" + lock}
	}
	return names{lock: lock}
}

// hashTag returns the part of a key that alone decides where the key is kept, if it has one.
func hashTag(key string) (tag string, ok bool) {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return "", false
	}
	tag, _, ok = strings.Cut(rest, "}")
	return tag, ok && tag != ""
}
