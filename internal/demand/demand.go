// Package demand is how a process that keeps a lock for its next caller learns that another token
// wants the lock. Package cohort keeps locks, and the backends that are a [Demander] report
// demands.
//
// It is internal because it is a protocol, not only an interface: all adapters of a server, and all
// processes, must recognize the same tokens and send the same messages.
package demand

import (
	"strings"
	"time"
)

// Patience is how long an attempt waits for the answer of an owner in another process, at least.
// Owners answer at once, so it passes only if the owner's process is stopped, or its machine is
// overloaded or gone. On a machine with ten times more to do than it can, answers took a second.
const Patience = 2 * time.Second

// Demander is a Locker that reports demands for locks whose tokens have a mark.
//
// An attempt of any Locker of the backend that is refused by such a token asks the owner first: it
// is refused only if the owner answers that the lock is in use, or does not answer in time. A Wait
// that joins the queue behind such a token reports a demand and needs no answer, and neither does
// one that stays in the queue when such a token gets the lock.
type Demander interface {
	// Listen begins to report demands to o. It returns nil if this Locker cannot.
	Listen(o Owner) Listener
}

// Owner is what demands are reported to. Its methods must not block.
type Owner interface {
	// Wanted reports that another token wants the lock of key. If answer is not nil, it is to be
	// called once, at once or later, with whether the lock is free by now.
	Wanted(key string, answer func(isFree bool))

	// Missed reports that demands may have been missed.
	Missed()
}

// Listener is an Owner's registration.
type Listener interface {
	// Mark returns the mark for a token that is to hold the lock of key, letters and digits only.
	// It is empty if demands would not be reported, for now or at all.
	Mark(key string) string

	// Live reports whether demands are reported at present. It is fast. After an interruption the
	// Owner's Missed is called.
	Live() bool

	// Close ends the reports.
	Close()
}

// Mark returns the mark of a token, or "" if it has none. A token with a mark ends in
// "~@<mark>~<letters and digits>". Tokens are arbitrary, so others may look like that: asking for
// their locks is useless, and may take as long as an owner that does not answer. The Redis scripts
// apply the same test.
func Mark(token string) string {
	last := strings.LastIndexByte(token, '~')
	if last < 0 || !isWord(token[last+1:]) {
		return ""
	}
	first := strings.LastIndex(token[:last], "~@")
	if first < 0 || !isWord(token[first+2:last]) {
		return ""
	}
	return token[first+2 : last]
}

func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != ""
}
