package redigo

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// value is the value of a lock's key: `<expiry>:<token>`, the expiry in milliseconds since 1970
// on the server's clock. The expiry comes first, so a token may contain any bytes.
//
// A plain number, which hand-written scripts leave, is a lock without an owner: its token is empty.
type value struct {
	expiry int64 // ms
	token  string
}

// errForeign means that the key has a value that this package cannot have written. It is left
// alone.
var errForeign = errors.New("the key holds something other than a lock of package redigo")

// Plain numbers are seconds or milliseconds by their magnitude: seconds from 1973 on (a smaller
// number, such as the 1 of a bare SETNX, is no time), milliseconds up to the year 5138.
const (
	firstSecond      = 1e8
	firstMillisecond = 1e11
	lastMillisecond  = 1e14
)

func (v value) encode() string {
	return string(append(append(strconv.AppendInt(nil, v.expiry, 10), ':'), v.token...))
}

// ownedBy reports whether token holds the lock, if it has not expired.
func (v value) ownedBy(token string) bool { return v.token == token && token != "" }

// expired reports whether the lock is free at a time in µs: any token may take it over.
func (v value) expired(now int64) bool { return now/1000 >= v.expiry }

// decode reads what encode writes, and plain numbers. Any other value is an error.
func decode(b []byte) (value, error) {
	number, token, owned := bytes.Cut(b, []byte{':'})
	if !owned {
		return decodeLegacy(b)
	}
	if !digits(number) || number[0] == '0' && len(number) > 1 || len(token) == 0 {
		return value{}, foreign(b)
	}
	expiry, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return value{}, foreign(b)
	}
	return value{expiry: expiry, token: string(token)}, nil
}

// decodeLegacy reads a Unix time, in seconds or milliseconds, possibly with a fraction.
func decodeLegacy(b []byte) (value, error) {
	whole, fraction, hasFraction := bytes.Cut(b, []byte{'.'})
	if !digits(whole) || hasFraction && !digits(fraction) || len(b) > 32 {
		return value{}, foreign(b)
	}
	at, err := strconv.ParseFloat(string(b), 64)
	switch {
	case err != nil || at < firstSecond || at >= lastMillisecond:
		return value{}, foreign(b)
	case at < firstMillisecond:
		at *= 1000
	}
	return value{expiry: int64(math.Ceil(at))}, nil
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}

func foreign(b []byte) error {
	const shown = 64
	if len(b) > shown {
		return fmt.Errorf("%w: %q and %d bytes more", errForeign, b[:shown], len(b)-shown)
	}
	return fmt.Errorf("%w: %q", errForeign, b)
}
