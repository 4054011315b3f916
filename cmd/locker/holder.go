package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// ownerOf returns the label that a token begins with. A token without one is shortened: whoever
// knows all of it can release the lock.
func ownerOf(token string) string {
	if i := strings.LastIndexByte(token, '/'); i > 0 {
		return token[:i]
	}
	const shown = 8
	if len(token) > shown {
		return token[:shown] + "…"
	}
	return token
}

// remaining describes the time that is left to a holder, if it is known.
func remaining(info locker.Info) string {
	if info.TTL < 0 {
		return ""
	}
	return fmt.Sprintf(" for %v more", round(info.TTL))
}

// round drops the digits that change too fast to be read.
func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
