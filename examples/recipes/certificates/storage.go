// Package certificates lets several servers obtain certificates by certmagic without getting in
// each other's way.
package certificates

import (
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/golockers/locker"
)

// Storage is a certmagic.Storage with the locks of a Locker.
type Storage struct {
	certificates
	*locker.Keyed // has Lock and Unlock
}

// certificates has the other methods. Its Lock and Unlock are one level deeper than those of Keyed.
type certificates struct{ certmagic.Storage }

// NewStorage keeps certificates in s and locks in l.
func NewStorage(s certmagic.Storage, l locker.Locker) Storage {
	return Storage{certificates{s}, locker.NewKeyed(l, time.Minute)}
}
