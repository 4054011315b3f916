// Package demand notifies a process that keeps a lock for its next caller when another token wants
// the lock. Package cohort keeps locks. Backends that implement [Demander] report demands.
//
// The package is internal because it is a protocol, not only an interface: all adapters of a
// server, in all processes, must recognize the same tokens and send the same messages.
package demand

import (
	"strings"
	"time"
)

// Patience is the minimum time that an attempt waits for the answer of an owner in another process.
// Owners answer at once, unless their process is stopped, or their machine is overloaded or gone.
// On a machine with ten times the load that it can handle, answers took a second.
const Patience = 2 * time.Second

// Demander is a Locker that reports demands for locks whose tokens have a mark.
//
// If such a token refuses an attempt of any Locker of the backend, the attempt asks the token's
// owner. The attempt is refused only if the owner answers that the lock is in use, or does not
// answer in time. A Wait that joins the queue behind such a token, or is in the queue when such a
// token gets the lock, reports a demand and needs no answer.
type Demander interface {
	// Listen begins to report demands to o. It returns nil if this Locker cannot report them.
	Listen(o Owner) Listener
}

// An Owner receives reports of demands. Its methods must not block.
type Owner interface {
	// Wanted reports that another token wants the lock of key. If answer is not nil, the Owner must
	// call it once, now or later. isFree reports whether the lock is free by then.
	Wanted(key string, answer func(isFree bool))

	// Missed reports that demands may have been missed.
	Missed()
}

// Listener is an Owner's registration.
type Listener interface {
	// Mark returns the mark for a token that will hold the lock of key. It consists of letters and
	// digits. It is empty if demands cannot be reported, now or ever.
	Mark(key string) string

	// Live reports whether demands are being reported. It is fast. After an interruption, the
	// Owner's Missed method is called.
	Live() bool

	// Close ends the reports.
	Close()
}

// Mark returns the mark of a token, or "" if it has none. A token with a mark ends in
// "~@<mark>~<letters and digits>". Tokens are arbitrary, so other tokens may look like that. Asking
// for their locks has no effect, and may take as long as with an owner that does not answer. The
// Redis scripts apply the same test.
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
