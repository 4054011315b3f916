package harness

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
)

// probe finds out, once and before any check, what would otherwise fail them all: a backend that does not
// answer, Lockers that do not share one, and optional behaviour that is not there.
func (s *Suite) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), OpTimeout)
	defer cancel()
	a, key, token := s.Lockers[0], RandomKey(), RandomToken()
	const ttl = time.Minute
	ok, err := a.Acquire(ctx, key, token, ttl)
	if err != nil {
		return fmt.Errorf("the first Acquire on the backend failed: %w", err)
	}
	if !ok {
		return errors.New("the first Acquire, of a fresh random key, was refused: (false, nil)")
	}
	defer a.Release(ctx, key, token)
	s.quickest = OpTimeout
	for range 5 {
		begun := time.Now()
		a.Acquire(ctx, key, token, ttl)
		s.quickest = min(s.quickest, time.Since(begun))
	}
	for i, b := range s.Lockers[1:] {
		apart, err := s.apart(ctx, b, key, token, ttl)
		if err != nil {
			return err
		}
		if apart {
			return fmt.Errorf("the Lockers of calls 1 and %d of Config.New are on different backends: the second "+
				"cannot release the first's token, acquires the key that the first holds, and after that both hold it", i+2)
		}
	}
	s.probeOptional(ctx)
	return nil
}

// apart says whether b is on another backend than the Locker A on which token was acquired. A broken Locker
// may let b in, too; but when afterwards both hold the lock, there are two locks.
func (s *Suite) apart(ctx context.Context, b locker.Locker, key, token string, ttl time.Duration) (bool, error) {
	a, other := s.Lockers[0], RandomToken()
	released, err := b.Release(ctx, key, token)
	if err != nil {
		return false, fmt.Errorf("the first Release on the backend failed: %w", err)
	}
	if released {
		if _, err := a.Acquire(ctx, key, token, ttl); err != nil { // for the next one
			return false, fmt.Errorf("an Acquire on the backend failed: %w", err)
		}
		return false, nil
	}
	acquired, err := b.Acquire(ctx, key, other, ttl)
	if err != nil {
		return false, fmt.Errorf("the first Acquire of a held key failed: %w", err)
	}
	if !acquired {
		return false, nil
	}
	defer b.Release(ctx, key, other)
	aHolds, _ := a.Extend(ctx, key, token, ttl)
	bHolds, _ := b.Extend(ctx, key, other, ttl)
	return aHolds && bHolds, nil
}

// probeNetwork sees that a Locker can be made that goes through the fault proxy.
func (s *Suite) probeNetwork(tb testing.TB) error {
	if s.Config.Addr == "" {
		return nil
	}
	p := faultproxy.New(tb, s.Config.Addr)
	l := s.Config.New(tb, p.Addr)
	if v := reflect.ValueOf(l); l == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("Config.New returned nil for the address of the fault proxy")
	}
	ctx, cancel := context.WithTimeout(context.Background(), OpTimeout)
	defer cancel()
	key, token := RandomKey(), RandomToken()
	if _, err := l.Acquire(ctx, key, token, time.Minute); err != nil {
		return fmt.Errorf("the first Acquire through the fault proxy failed: %w", err)
	}
	l.Release(ctx, key, token)
	if n, _ := p.Count(); n == 0 {
		return errors.New("Config.New does not use its addr: it was given that of the fault proxy, the Locker works, " +
			"and not a byte has come to the proxy")
	}
	return nil
}

// probeOptional notes which optional interfaces cannot be checked, and why. A method that fails in another
// way than errors.ErrUnsupported is left to its checks.
func (s *Suite) probeOptional(ctx context.Context) {
	l, key, token := s.Lockers[0], RandomKey(), RandomToken()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	if w, ok := l.(locker.Watcher); !ok {
		s.lacks[NeedsWatch] = fmt.Sprintf("%T is no locker.Watcher", l)
	} else if _, err := w.Watch(ctx, key); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsWatch] = "Watch says " + err.Error()
	}
	if w, ok := l.(locker.Waiter); !ok {
		s.lacks[NeedsWait] = fmt.Sprintf("%T is no locker.Waiter", l)
		s.lacks[NeedsUnsupportedWait] = s.lacks[NeedsWait]
	} else if _, err := w.Wait(ctx, key, token, time.Minute); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsWait] = "Wait says " + err.Error()
	} else {
		s.lacks[NeedsUnsupportedWait] = "Wait is supported"
	}
	l.Acquire(ctx, key, token, time.Minute)
	defer l.Release(context.WithoutCancel(ctx), key, token)
	if f, ok := l.(locker.Fencer); !ok {
		s.lacks[NeedsFence] = fmt.Sprintf("%T is no locker.Fencer", l)
	} else if _, _, err := f.Fence(ctx, key, token); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsFence] = "Fence says " + err.Error()
	}
}
