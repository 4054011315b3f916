package semaphore

import (
	"time"

	"github.com/golockers/locker/internal/permits"
)

// queued returns the permits of key if the backend keeps one queue for all of them, and otherwise
// nil.
func (l *Locker) queued(key string) permits.Permits {
	keeper, ok := l.inner.(permits.Keeper)
	if !ok || l.check() != nil {
		return nil
	}
	return keeper.Permits(l.inner, base(key), l.n)
}

// note remembers the permit that token holds, by a reply of the queue for all permits. If permit is
// 0, token holds none. It reports whether token holds one.
func (l *Locker) note(key, token string, permit int, ttl time.Duration) (holds bool) {
	if permit == 0 {
		l.known.forget(key, token)
		return false
	}
	l.known.set(key, token, permit-1, ttl)
	return true
}
