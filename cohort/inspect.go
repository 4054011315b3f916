package cohort

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/demand"
)

// idLength is the length of the part of a private token that identifies its Locker: 26 characters
// of base32.
const idLength = 26

// isOthers reports whether token is the private token of another cohort.
func (l *Locker) isOthers(token string) bool {
	tail := token[strings.LastIndexByte(token, '~')+1:]
	return len(tail) > idLength && len(tail) < len(token) && !strings.HasPrefix(tail, l.id)
}

// Inspect reports who holds the lock of key. For a lock that a goroutine of this process holds it
// reports that goroutine's token and time. For one that another process holds, the token is the
// private one of its cohort, which begins as [WithOwner] describes and can be passed to Release. A
// lock that lingers is free in the process that keeps it, and held in all others. Waiters includes
// those of this process and, where the wrapped Locker counts them, one for each other process.
//
// The error wraps [errors.ErrUnsupported] if the wrapped Locker is not a [locker.Inspector].
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	if err := l.check(ctx); err != nil {
		return locker.Info{Key: key}, err
	}
	inspector, ok := l.inner.(locker.Inspector)
	if !ok {
		return locker.Info{Key: key}, fmt.Errorf("%T does not report holders: %w", l.inner, errors.ErrUnsupported)
	}
	for again := 2; ; again-- {
		info, err := inspector.Inspect(ctx, key)
		if err != nil {
			return info, err
		}
		info, isPast := l.translate(info)
		if !isPast || again == 0 {
			return info, nil
		}
	}
}

// List yields the locks of the wrapped Locker, each as Inspect reports it.
//
// The error wraps [errors.ErrUnsupported] if the wrapped Locker is not a [locker.Lister].
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		if err := l.check(ctx); err != nil {
			yield(locker.Info{}, err)
			return
		}
		lister, ok := l.inner.(locker.Lister)
		if !ok {
			yield(locker.Info{}, fmt.Errorf("%T does not list locks: %w", l.inner, errors.ErrUnsupported))
			return
		}
		for info, err := range lister.List(ctx, prefix) {
			if err == nil {
				info, err = l.listed(ctx, info)
			}
			if err == nil && info.Token == "" {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

// listed is translate for a lock in a list. If this process has given up the lock in the meantime,
// listed inspects it.
func (l *Locker) listed(ctx context.Context, info locker.Info) (locker.Info, error) {
	now, isPast := l.translate(info)
	if isPast && locker.CanInspect(l.inner) {
		return l.Inspect(ctx, info.Key)
	}
	return now, nil
}

// isKept reports whether token is a private token of this Locker for a lock that may linger.
func (l *Locker) isKept(token string) bool {
	return demand.Mark(token) != "" && strings.HasPrefix(token[strings.LastIndexByte(token, '~')+1:], l.id)
}

// translate replaces the backend's information about a lock with that of this process. isPast
// reports whether the lock may have lingered and been given up in the meantime, so that no caller
// held it.
func (l *Locker) translate(info locker.Info) (_ locker.Info, isPast bool) {
	s := l.shard(info.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[info.Key]
	if r == nil {
		return info, l.isKept(info.Token)
	}
	now := time.Now()
	switch t := r.tenure; {
	case r.parting != nil && r.parting.token == info.Token:
		info.Token, info.TTL = "", 0
	case t == nil || t.token != info.Token:
		isPast = l.isKept(info.Token)
	case t.lingering:
		info.Token, info.TTL = "", 0
	case t.heldBy(t.holder, now):
		info.Token, info.TTL = t.holder, t.expires.Sub(now)
	}
	if info.Waiters >= 0 {
		for w := r.first; w != nil; w = w.next {
			info.Waiters++
		}
		if locker.CanWait(l.inner) && r.driving && r.first != nil && r.abandon != nil {
			info.Waiters-- // the drive waits in the backend's queue
		}
	}
	return info, isPast
}
