package redislock

import (
	"errors"
	"fmt"
	"strings"
)

// ErrForeign is the cause of an error about a lock that no adapter of this package has written: its
// value is one of package redigo, which uses the same default prefix, or a plain time, which
// hand-written scripts leave.
var ErrForeign = errors.New("the key holds a lock in the format of package redigo, or a plain time; " +
	"give the two packages different prefixes")

// escaped begins the value of a lock whose token would otherwise be taken for a foreign value.
const escaped = "token:"

// offered begins the value of a lock that waits to be taken by the entry that follows.
const offered = "offer:"

// EncodeToken returns the value of a lock that token holds: token itself, unless that looks like a
// foreign value, an offer or an encoded token. The scripts know only values.
func EncodeToken(token string) string {
	if isForeign(token) || strings.HasPrefix(token, escaped) || strings.HasPrefix(token, offered) {
		return escaped + token
	}
	return token
}

// CheckHolder returns an error that wraps [ErrForeign] if value is a lock's value that no adapter
// of this package has written.
func CheckHolder(value string) error {
	if !isForeign(value) {
		return nil
	}
	const shown = 64
	if len(value) > shown {
		value = value[:shown]
	}
	return foreignError(value)
}

func foreignError(value string) error { return fmt.Errorf("%w: %q", ErrForeign, value) }

// ForeignReply returns the error for a script's error reply if that is about a foreign value, and
// nil otherwise.
func ForeignReply(reply string) error {
	value, ok := strings.CutPrefix(reply, "FOREIGN ")
	if !ok {
		return nil
	}
	return foreignError(value)
}

// isForeign applies the same test as refused.lua.
func isForeign(value string) bool {
	rest := strings.TrimLeft(value, "0123456789")
	digits := len(value) - len(rest)
	if digits == 0 {
		return false
	}
	if len(rest) > 1 && rest[0] == ':' {
		return true
	}
	if digits < 9 || digits > 15 {
		return false
	}
	return rest == "" || len(rest) > 1 && rest[0] == '.' && strings.TrimLeft(rest[1:], "0123456789") == ""
}
