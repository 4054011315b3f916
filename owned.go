package locker

// The Locker whose tokens show which process holds a lock.

import (
	"context"

	"github.com/golockers/locker/internal/owner"
)

// Owned returns a Locker that behaves as l does, with [WithOwner] of label for every acquisition by the
// functions of this package that has neither WithOwner nor [WithToken]. If label is empty, it is that
// of the process: host, process id and start, such as web-3/4711/20260301T030005Z. So [Info] and
// "locker ls" show who holds a lock:
//
//	l := locker.Owned(redisv9.New(client), "")
//
// Like the result of [Observed], it has the methods of all optional interfaces. It can be observed, and
// made from an observed Locker. Put it around a cohort or a Locker of package semaphore, not under it:
// their tokens are without the label then. Package window needs the Locker behind it.
func Owned(l Locker, label string) Locker {
	if label == "" {
		label = owner.Process()
	}
	if o, ok := l.(*observed); ok {
		return &observed{o.Locker, o.observer, label}
	}
	return &observed{l, nobody{}, label}
}

// nobody is the observer of a Locker that is owned and not observed.
type nobody struct{}

func (nobody) Observe(context.Context, Event) {}
