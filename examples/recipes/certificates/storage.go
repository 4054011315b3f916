// Package certificates lets several servers obtain certificates by certmagic without getting in
// each other's way.
package certificates

import (
	"context"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/golockers/locker"
)

// Storage is a certmagic.Storage with the locks of Locker.
type Storage struct {
	certmagic.Storage // where the certificates are
	Locker            locker.Locker
	leases            sync.Map // by name
}

func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := locker.Lock(ctx, s.Locker, "certmagic/"+name, time.Minute, locker.WithKeepAlive())
	if err == nil {
		s.leases.Store(name, lease)
	}
	return err
}

func (s *Storage) Unlock(ctx context.Context, name string) error {
	held, _ := s.leases.LoadAndDelete(name)
	lease, _ := held.(*locker.Lease)
	return lease.Unlock(ctx)
}
