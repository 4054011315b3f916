package locker

import (
	"crypto/rand"
	"encoding/binary"
)

// newToken returns the token of an acquisition.
func (o *options) newToken() string {
	switch {
	case o.hasToken:
		return o.token
	case o.owner != "":
		return o.owner + "/" + randomToken()
	}
	return randomToken()
}

const tokenAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // of base32

// randomToken returns 128 random bits in base32, as rand.Text does, but from fewer random bytes. Each
// call gets them from the operating system: bits that were kept for later, or a generator in this
// process, would repeat themselves in copies of a virtual machine.
func randomToken() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	const half = 13           // characters for 64 bits; the last has only 4 of them
	var text [2 * half]byte
	a, b := binary.LittleEndian.Uint64(bits[:8]), binary.LittleEndian.Uint64(bits[8:])
	for i := range half {
		text[i], text[half+i] = tokenAlphabet[a%32], tokenAlphabet[b%32]
		a, b = a/32, b/32
	}
	return string(text[:])
}
