package schedules

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// isConsequence reports whether an injected fault explains an error that does not wrap it.
func isConsequence(err error) bool {
	for _, text := range []string{
		"the reply came after the ttl",
		"while waiting for the lock",                                  // LockAll lost another one
		"an earlier request with a shorter ttl has not been answered", // a cohort cannot know when a lock ends
	} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// turn runs one caller. A patient caller is never canceled, and tries again after errors, so it
// must be served.
func (s *schedule) turn(l locker.Locker, keyed *locker.Keyed, patient bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if patient {
		s.patient(l)
		return
	}
	if s.chance(2, 3) {
		ctx, cancel = context.WithTimeout(ctx, s.upTo(time.Second))
		defer cancel()
	}
	switch s.n(7) {
	case 0, 1:
		s.lock(ctx, l)
	case 2:
		s.do(ctx, l)
	case 3:
		s.all(ctx, l)
	case 4:
		s.byKey(ctx, keyed)
	case 5:
		s.detach(ctx, l)
	default:
		s.resume(ctx, l)
	}
	time.Sleep(s.upTo(20 * time.Millisecond))
}

func (s *schedule) key() string { return keys[s.n(len(keys)-1)] }

func (s *schedule) ttl() time.Duration {
	return []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second}[s.n(3)]
}

func (s *schedule) options() (opts []locker.Option) {
	if s.chance(1, 3) {
		opts = append(opts, locker.WithOwner("owner"))
	}
	if s.chance(1, 3) {
		opts = append(opts, locker.WithRetry())
	}
	if s.chance(1, 3) {
		opts = append(opts, locker.WithMaxHold(s.upTo(time.Second)))
	}
	return opts
}

// patient waits for a lock, and must be served within a few minutes.
func (s *schedule) patient(l locker.Locker) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	lease, err := locker.Lock(ctx, l, s.key(), s.ttl(), locker.WithRetry())
	if err != nil {
		s.violated("a patient waiter was not served: %v", err)
		return
	}
	s.granted(lease)
	time.Sleep(s.upTo(20 * time.Millisecond))
	s.unlock(ctx, lease, lease.Unlock)
	time.Sleep(s.upTo(50 * time.Millisecond))
}

func (s *schedule) lock(ctx context.Context, l locker.Locker) {
	take, opts := locker.Lock, s.options()
	if s.chance(1, 3) {
		take = locker.TryLock
	}
	keep := s.chance(1, 2)
	if keep {
		opts = append(opts, locker.WithKeepAlive())
	}
	lease, err := take(ctx, l, s.key(), s.ttl(), opts...)
	if err != nil {
		s.failed(err)
		return
	}
	s.granted(lease)
	s.use(lease)
	if !keep && s.chance(1, 8) {
		return // it vanishes
	}
	var extending sync.WaitGroup
	if s.chance(1, 4) { // an unlock crosses with it
		extending.Go(func() { s.failed(lease.Extend(ctx, s.ttl())) })
	}
	s.unlock(ctx, lease, lease.Unlock)
	extending.Wait()
	for range 3 {
		if err := lease.Unlock(context.Background()); err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		time.Sleep(s.upTo(100 * time.Millisecond))
	}
}

// use holds a lock for a while, and does anything that a holder may do.
func (s *schedule) use(lease *locker.Lease) {
	ctx, cancel := lease.Context(context.Background())
	defer cancel()
	for range s.n(4) {
		_ = rest(ctx, s.upTo(200*time.Millisecond))
		s.compare(lease)
		if isBelieved(lease) != (ctx.Err() == nil) {
			s.violated("the context of a lease has %v while its error is %v", ctx.Err(), lease.Err())
		}
		switch s.n(3) {
		case 0:
			short, cancel := context.WithTimeout(context.Background(), s.upTo(100*time.Millisecond))
			s.failed(lease.Extend(short, s.ttl()))
			cancel()
			s.compare(lease)
		case 1:
			s.fence(lease)
		}
	}
}

func (s *schedule) fence(lease *locker.Lease) {
	s.mu.Lock()
	before := s.fences[lease.Key()]
	s.mu.Unlock()
	n, err := lease.Fence(context.Background())
	if err != nil {
		s.failed(err)
		return
	}
	if n <= before {
		s.violated("the fencing number %d of %s follows %d", n, lease.Key(), before)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Fences++
	s.fences[lease.Key()] = max(s.fences[lease.Key()], n)
}

// do runs a function under a lock, which returns, panics, or ends its goroutine.
func (s *schedule) do(ctx context.Context, l locker.Locker) {
	key, ttl, opts := s.key(), s.ttl(), s.options()
	try := s.chance(1, 3)
	if s.chance(1, 3) {
		opts = append(opts, locker.WithMinHold(s.upTo(time.Second)))
	}
	how := s.n(4)
	fn := func(ctx context.Context) error {
		lease := locker.FromContext(ctx)
		s.granted(lease)
		defer s.ended(lease)
		if _, err := locker.Lock(ctx, l, key, ttl); !errors.Is(err, locker.ErrDeadlock) && lease.Err() == nil {
			s.violated("Lock of a lock that ctx carries: %v", err)
		}
		_ = rest(ctx, s.upTo(200*time.Millisecond))
		s.compare(lease)
		switch how {
		case 0:
			panic(errInjected)
		case 1:
			runtime.Goexit()
		case 2:
			return errInjected
		}
		return nil
	}
	var caller sync.WaitGroup
	caller.Go(func() {
		defer func() { _ = recover() }()
		var err error
		if try {
			_, err = locker.TryDo(ctx, l, key, ttl, fn, opts...)
		} else {
			err = locker.Do(ctx, l, key, ttl, fn, opts...)
		}
		s.failed(err)
	})
	caller.Wait()
}

// all takes several locks, or none.
func (s *schedule) all(ctx context.Context, l locker.Locker) {
	some := keys[s.n(2) : 2+s.n(2)]
	leases, err := locker.LockAll(ctx, l, some, s.ttl(), s.options()...)
	if err != nil {
		s.failed(err)
		return
	}
	for _, lease := range leases {
		s.granted(lease)
	}
	time.Sleep(s.upTo(100 * time.Millisecond))
	for _, lease := range leases {
		s.compare(lease)
		s.ended(lease)
	}
	s.failed(leases.Unlock(ctx))
	_ = leases.Unlock(context.Background()) // after an error
}

// byKey holds the lock of a Keyed, which has only one holder even if its lock is lost.
func (s *schedule) byKey(ctx context.Context, k *locker.Keyed) {
	key := s.key()
	var err error
	acquired := true
	if s.chance(1, 3) {
		acquired, err = k.TryLock(ctx, key)
	} else {
		err = k.Lock(ctx, key)
	}
	if err != nil || !acquired {
		s.failed(err)
		return
	}
	name := key
	if k == s.keyed[1] {
		name += " of the other"
	}
	s.mu.Lock()
	s.insides[name]++
	inside := s.insides[name]
	s.mu.Unlock()
	if inside != 1 {
		s.violated("%d hold %s of one Keyed", inside, key)
	}
	time.Sleep(s.upTo(100 * time.Millisecond))
	s.mu.Lock()
	s.insides[name]--
	s.mu.Unlock()
	s.failed(k.Unlock(ctx, key))
}

// detach leaves a lock to another caller.
func (s *schedule) detach(ctx context.Context, l locker.Locker) {
	lease, err := locker.Lock(ctx, l, detachedKey, 3*time.Second, locker.WithKeepAlive())
	if err != nil {
		s.failed(err)
		return
	}
	s.granted(lease)
	time.Sleep(s.upTo(100 * time.Millisecond))
	s.compare(lease)
	s.ended(lease)
	lease.Detach()
	select {
	case s.left <- lease.Token():
	default:
	}
}

// resume takes over what another caller has left.
func (s *schedule) resume(ctx context.Context, l locker.Locker) {
	select {
	case token := <-s.left:
		lease, err := locker.Resume(ctx, l, detachedKey, token, 3*time.Second, locker.WithKeepAlive())
		if err != nil {
			s.failed(err)
			return
		}
		s.count(func(c *Counts) { c.Resumed++ })
		s.granted(lease)
		s.use(lease)
		s.unlock(ctx, lease, lease.Unlock)
	default:
	}
}
