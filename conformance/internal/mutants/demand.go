package mutants

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// keeper is a Locker that keeps a lock after its release, for its next caller, until another keeper
// wants it. On the backend all its locks are held under private tokens.
type keeper struct {
	*Fake
	all *keepers

	taking sync.Mutex
	mu     sync.Mutex
	locks  map[string]*keptLock
	closed bool

	// The ways in which it may be broken.
	neverGivesWay, givesWayInUse, neverExtends, ignoresExpiry, forgetsDemands, breaksPromises, leavesLocks bool
}

type keptLock struct {
	private string
	until   time.Time // on the backend
	holder  string    // the caller's token; empty while it is kept
}

// keepers are all keepers on one store.
type keepers struct {
	mu       sync.Mutex
	owners   map[string]*keeper // by private token
	wanted   map[string]bool    // private tokens of locks that others want
	numbered int
}

func newKeepers() *keepers {
	return &keepers{owners: make(map[string]*keeper), wanted: make(map[string]bool)}
}

// private returns a token of k for a lock that is taken for a caller.
func (all *keepers) private(k *keeper) string {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.numbered++
	token := "private/" + string(rune('A'+k.ID)) + "/" + time.Duration(all.numbered).String()
	all.owners[token] = k
	return token
}

func (all *keepers) forget(private string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.owners, private)
	delete(all.wanted, private)
}

func (all *keepers) isWanted(private string) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.wanted[private]
}

// ask asks the owner of the lock's token to give the lock up, and reports whether it may be free.
func (all *keepers) ask(key, private string) bool {
	all.mu.Lock()
	owner := all.owners[private]
	if owner != nil && !owner.forgetsDemands {
		all.wanted[private] = true
	}
	all.mu.Unlock()
	return owner != nil && owner.demanded(key, private)
}

// asks calls ask once for each holder of the lock, until ctx ends.
func (all *keepers) asks(ctx context.Context, s *store, key string) {
	for last := ""; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		if it, _ := s.get(key); it.token != last {
			last = it.token
			all.ask(key, last)
		}
	}
}

// demanded gives up a lock that is kept, and otherwise notes that it is wanted.
func (k *keeper) demanded(key, private string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.locks[key]
	switch {
	case k.neverGivesWay || e == nil || e.private != private:
		return false
	case e.holder != "" && !k.givesWayInUse:
		return false
	case k.breaksPromises:
		time.AfterFunc(2*time.Millisecond, func() { k.store.release(key, private) })
		time.AfterFunc(4*time.Millisecond, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.locks[key] == e {
				delete(k.locks, key)
			}
		})
		return true
	}
	k.giveUp(key, e)
	return true
}

func (k *keeper) giveUp(key string, e *keptLock) bool {
	delete(k.locks, key)
	k.all.forget(e.private)
	return k.store.release(key, e.private)
}

// serve gives a lock that is kept to a caller. known is false if k does not have the lock.
func (k *keeper) serve(key, token string, ttl time.Duration) (acquired, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.locks[key]
	if e != nil && !time.Now().Before(e.until) && !(k.ignoresExpiry && e.holder == "") {
		delete(k.locks, key)
		k.all.forget(e.private)
		e = nil
	}
	if e == nil || e.holder != "" && e.holder != token {
		return false, e != nil
	}
	if !k.neverExtends && !k.ignoresExpiry || e.holder == token {
		start := time.Now()
		if !k.store.extend(key, e.private, ttl) {
			delete(k.locks, key)
			k.all.forget(e.private)
			return false, false
		}
		e.until = start.Add(ttl)
	}
	e.holder = token
	return true, true
}

func (k *keeper) took(key, private, token string, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.locks[key] = &keptLock{private: private, holder: token, until: until}
}

func (k *keeper) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	for range 3 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if acquired, known := k.take(key, token, ttl); acquired || known {
			return acquired, nil
		}
		if it, ok := k.store.get(key); ok && !k.all.ask(key, it.token) {
			return false, nil
		}
	}
	return false, nil
}

// take acquires the lock, kept or not, unless another token holds it. known is true if that token
// is of a caller of k.
func (k *keeper) take(key, token string, ttl time.Duration) (acquired, known bool) {
	k.taking.Lock() // one at a time, since calls may have the same token
	defer k.taking.Unlock()
	if acquired, known = k.serve(key, token, ttl); known {
		return acquired, known
	}
	private, start := k.all.private(k), time.Now()
	if k.store.acquire(key, private, ttl) {
		k.took(key, private, token, start.Add(ttl))
		return true, true
	}
	k.all.forget(private)
	return false, false
}

// Wait also asks each process that gets the lock while it waits.
func (k *keeper) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	start := time.Now()
	if acquired, err := k.Acquire(ctx, key, token, ttl); acquired || err != nil {
		return start.Add(ttl), err
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	go k.all.asks(asking, k.store, key)
	private := k.all.private(k)
	deadline, err := k.store.wait(ctx, key, private, ttl)
	if err != nil {
		k.all.forget(private)
		return time.Time{}, err
	}
	k.took(key, private, token, deadline)
	return deadline, nil
}

// held returns the private token under which token holds the lock.
func (k *keeper) held(key, token string) (e *keptLock, ok bool) {
	e = k.locks[key]
	return e, e != nil && e.holder == token
}

func (k *keeper) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.held(key, token)
	if !ok || ctx.Err() != nil {
		return false, ctx.Err()
	}
	start := time.Now()
	if ok = k.store.extend(key, e.private, ttl); ok {
		e.until = start.Add(ttl)
	}
	return ok, nil
}

func (k *keeper) Release(ctx context.Context, key, token string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.held(key, token)
	switch {
	case !ok || ctx.Err() != nil:
		return false, ctx.Err()
	case k.closed || k.all.isWanted(e.private) || !time.Now().Before(e.until):
		return k.giveUp(key, e), nil
	}
	e.holder = ""
	return true, nil
}

// Close gives up the locks that are kept.
func (k *keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for key, e := range k.locks {
		switch {
		case e.holder != "":
		case k.leavesLocks:
			k.all.forget(e.private)
			delete(k.locks, key)
		default:
			k.giveUp(key, e)
		}
	}
	return nil
}

// Keepers returns the configuration of keepers, each altered by alter. The Lockers implement only
// what keeping locks needs.
func Keepers(alter func(k *keeper)) harness.Config {
	s, all, n := NewStore(), newKeepers(), 0
	return harness.Config{New: func(testing.TB, string) locker.Locker {
		k := &keeper{Fake: NewFake(s, n), all: all, locks: make(map[string]*keptLock)}
		n++
		alter(k)
		return struct {
			locker.Waiter
			closer
		}{k, closer{k}}
	}}
}

type closer struct{ k *keeper }

func (c closer) Close() error { return c.k.Close() }

// NewKeepers returns the configuration of keepers that are correct.
func NewKeepers() harness.Config {
	c := Keepers(func(*keeper) {})
	const why = "a token is good only on the Locker that granted it"
	c.Skip = map[string]string{"release/from-another-client": why, "sametoken/any-client": why}
	return c
}

func demandMutants() []Mutant {
	keeps := func(alter func(k *keeper)) func(testing.TB) harness.Config {
		return func(testing.TB) harness.Config { return Keepers(alter) }
	}
	only := []string{"demand/*"}
	return []Mutant{{
		Name:   "a kept lock never gives way",
		Only:   only,
		Must:   []string{"demand/gives-way", "demand/in-use"},
		May:    []string{"demand/*"},
		Config: keeps(func(k *keeper) { k.neverGivesWay = true }),
	}, {
		Name:   "a kept lock gives way while it is in use",
		Only:   only,
		Must:   []string{"demand/in-use", "demand/race"},
		May:    []string{"demand/waiter", "demand/deadline", "demand/close"},
		Config: keeps(func(k *keeper) { k.givesWayInUse = true }),
	}, {
		Name:   "a kept lock is granted without an extension",
		Only:   only,
		Must:   []string{"demand/deadline"},
		Config: keeps(func(k *keeper) { k.neverExtends = true }),
	}, {
		Name:   "a kept lock is granted after its time",
		Only:   only,
		Must:   []string{"demand/deadline"},
		Config: keeps(func(k *keeper) { k.ignoresExpiry = true }),
	}, {
		Name:   "a demand for a lock in use is forgotten",
		Only:   only,
		Must:   []string{"demand/waiter"},
		Config: keeps(func(k *keeper) { k.forgetsDemands = true }),
	}, {
		Name: "a caller gets a lock that another process was promised", RealTime: true,
		Only:   only,
		Must:   []string{"demand/race"},
		May:    []string{"demand/*"},
		Config: keeps(func(k *keeper) { k.breaksPromises = true }),
	}, {
		Name:   "close leaves the locks that are kept",
		Only:   only,
		Must:   []string{"demand/close"},
		Config: keeps(func(k *keeper) { k.leavesLocks = true }),
	}}
}
