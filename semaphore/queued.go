package semaphore

import (
	"time"

	"github.com/golockers/locker/internal/permits"
)

// queued returns the permits of key if the backend keeps a queue for all of them. Otherwise it
// returns nil.
func (l *Locker) queued(key string) permits.Permits {
	keeper, ok := l.inner.(permits.Keeper)
	if !ok || l.check() != nil {
		return nil
	}
	return keeper.Permits(l.inner, base(key), l.n)
}

// note remembers that token holds a permit of such a queue, or none if permit is 0, and reports
// whether it does.
func (l *Locker) note(key, token string, permit int, ttl time.Duration) (holds bool) {
	if permit == 0 {
		l.known.forget(key, token)
		return false
	}
	l.known.set(key, token, permit-1, ttl)
	return true
}
