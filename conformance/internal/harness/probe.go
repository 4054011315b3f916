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

// probe detects before any check what would fail them all: a backend that does not answer, Lockers
// that do not share a backend, and missing optional methods.
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

// apart reports whether b is on another backend than the Locker A on which token was acquired. A
// broken Locker may let b in as well; but if both then hold the lock, there are two locks.
func (s *Suite) apart(ctx context.Context, b locker.Locker, key, token string, ttl time.Duration) (bool, error) {
	a, other := s.Lockers[0], RandomToken()
	released, err := b.Release(ctx, key, token)
	if err != nil {
		return false, fmt.Errorf("the first Release on the backend failed: %w", err)
	}
	if released {
		if _, err := a.Acquire(ctx, key, token, ttl); err != nil { // for the next b
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

// probeNetwork checks that a Locker can be made that connects through the fault proxy.
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
		return errors.New("Config.New does not use its addr: it was given that of the fault proxy, and the Locker works, " +
			"but the proxy has received nothing")
	}
	return nil
}

// probeOptional records which optional interfaces cannot be checked, and why. Errors other than
// errors.ErrUnsupported are left to the checks.
func (s *Suite) probeOptional(ctx context.Context) {
	l, key, token := s.Lockers[0], RandomKey(), RandomToken()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	if w, ok := l.(locker.Watcher); !ok {
		s.lacks[NeedsWatch] = fmt.Sprintf("%T is not a locker.Watcher", l)
	} else if _, err := w.Watch(ctx, key); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsWatch] = "Watch returns " + err.Error()
	}
	if w, ok := l.(locker.Waiter); !ok {
		s.lacks[NeedsWait] = fmt.Sprintf("%T is not a locker.Waiter", l)
		s.lacks[NeedsUnsupportedWait] = s.lacks[NeedsWait]
	} else if _, err := w.Wait(ctx, key, token, time.Minute); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsWait] = "Wait returns " + err.Error()
	} else {
		s.lacks[NeedsUnsupportedWait] = "Wait is supported"
	}
	l.Acquire(ctx, key, token, time.Minute)
	defer l.Release(context.WithoutCancel(ctx), key, token)
	if f, ok := l.(locker.Fencer); !ok {
		s.lacks[NeedsFence] = fmt.Sprintf("%T is not a locker.Fencer", l)
	} else if _, _, err := f.Fence(ctx, key, token); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsFence] = "Fence returns " + err.Error()
	}
	if i, ok := l.(locker.Inspector); !ok {
		s.lacks[NeedsInspect] = fmt.Sprintf("%T is not a locker.Inspector", l)
	} else if _, err := i.Inspect(ctx, key); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsInspect] = "Inspect returns " + err.Error()
	}
	if i, ok := l.(locker.Lister); !ok {
		s.lacks[NeedsList] = fmt.Sprintf("%T is not a locker.Lister", l)
	} else if _, err := collect(i.List(ctx, key)); errors.Is(err, errors.ErrUnsupported) {
		s.lacks[NeedsList] = "List yields " + err.Error()
	}
}
