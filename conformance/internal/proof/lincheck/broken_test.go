package lincheck

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errLost = errors.New("no answer")

// altered is a Locker that loses answers, or breaks a rule.
type altered struct {
	*memory.Locker
	acquire, extend func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	release         func(ctx context.Context, key, token string) (bool, error)
	fence           func(ctx context.Context, key, token string) (uint64, bool, error)
}

func (a altered) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if a.acquire != nil {
		return a.acquire(ctx, key, token, ttl)
	}
	return a.Locker.Acquire(ctx, key, token, ttl)
}

func (a altered) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if a.extend != nil {
		return a.extend(ctx, key, token, ttl)
	}
	return a.Locker.Extend(ctx, key, token, ttl)
}

func (a altered) Release(ctx context.Context, key, token string) (bool, error) {
	if a.release != nil {
		return a.release(ctx, key, token)
	}
	return a.Locker.Release(ctx, key, token)
}

func (a altered) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if a.fence != nil {
		return a.fence(ctx, key, token)
	}
	return a.Locker.Fence(ctx, key, token)
}

// sometimes reports true a tenth of the time.
func sometimes() bool { return rand.N(10) == 0 }

// losing is a correct Locker of whose answers a tenth is lost: before the operation, after it, or
// while the operation still takes effect later.
func losing(l *memory.Locker) altered {
	lose := func(do func() (bool, error)) (bool, error) {
		if !sometimes() {
			return do()
		}
		switch rand.N(3) {
		case 0:
			_, _ = do()
		case 1:
			time.AfterFunc(rand.N(5*time.Millisecond), func() { _, _ = do() })
		}
		return false, errLost
	}
	return altered{
		Locker: l,
		acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return lose(func() (bool, error) { return l.Acquire(context.WithoutCancel(ctx), key, token, ttl) })
		},
		extend: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return lose(func() (bool, error) { return l.Extend(context.WithoutCancel(ctx), key, token, ttl) })
		},
		release: func(ctx context.Context, key, token string) (bool, error) {
			return lose(func() (bool, error) { return l.Release(context.WithoutCancel(ctx), key, token) })
		},
	}
}

// broken are Lockers with one mistake each.
var broken = map[string]func(l *memory.Locker) altered{
	"acquire ignores the holder": func(l *memory.Locker) altered {
		return altered{Locker: l, acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := l.Acquire(ctx, key, token, ttl)
			return ok || sometimes(), err
		}}
	},
	"release does not compare the token": func(l *memory.Locker) altered {
		return altered{Locker: l, release: func(ctx context.Context, key, _ string) (bool, error) {
			info, err := l.Inspect(ctx, key)
			if err != nil || info.Token == "" {
				return false, err
			}
			return l.Release(ctx, key, info.Token)
		}}
	},
	"extend does not compare the token": func(l *memory.Locker) altered {
		return altered{Locker: l, extend: func(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
			info, err := l.Inspect(ctx, key)
			if err != nil || info.Token == "" {
				return false, err
			}
			return l.Extend(ctx, key, info.Token, ttl)
		}}
	},
	"extend takes a free lock": func(l *memory.Locker) altered {
		return altered{Locker: l, extend: l.Acquire}
	},
	"the same token is refused": func(l *memory.Locker) altered {
		return altered{Locker: l, acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if info, err := l.Inspect(ctx, key); err != nil || info.Token == token {
				return false, err
			}
			return l.Acquire(ctx, key, token, ttl)
		}}
	},
	"half of the ttl": func(l *memory.Locker) altered {
		return altered{Locker: l, acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			return l.Acquire(ctx, key, token, ttl/2)
		}}
	},
	"extend ignores the ttl": func(l *memory.Locker) altered {
		return altered{Locker: l, extend: func(ctx context.Context, key, token string, _ time.Duration) (bool, error) {
			return l.Extend(ctx, key, token, time.Millisecond)
		}}
	},
	"an error becomes false": func(l *memory.Locker) altered {
		a := losing(l)
		acquire := a.acquire
		a.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, _ := acquire(ctx, key, token, ttl)
			return ok, nil
		}
		return a
	},
	"an error becomes true": func(l *memory.Locker) altered {
		a := losing(l)
		release := a.release
		a.release = func(ctx context.Context, key, token string) (bool, error) {
			ok, err := release(ctx, key, token)
			return ok || err != nil, nil
		}
		return a
	},
	"a request arrives twice": func(l *memory.Locker) altered {
		return altered{Locker: l, acquire: func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if sometimes() {
				time.AfterFunc(rand.N(3*time.Millisecond), func() { _, _ = l.Acquire(context.Background(), key, token, ttl) })
			}
			return l.Acquire(ctx, key, token, ttl)
		}}
	},
	"fence of anyone": func(l *memory.Locker) altered {
		var n atomic.Uint64
		return altered{Locker: l, fence: func(context.Context, string, string) (uint64, bool, error) {
			return n.Add(1), true, nil
		}}
	},
	"fence repeats": func(l *memory.Locker) altered {
		var mu sync.Mutex
		var last uint64
		return altered{Locker: l, fence: func(ctx context.Context, key, token string) (uint64, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			n, ok, err := l.Fence(ctx, key, token)
			if ok && (last == 0 || !sometimes()) {
				last = n
			}
			return last, ok, err
		}}
	},
}

// judge checks histories of a Locker until one is not linearizable, and counts what it found.
func judge(t *testing.T, create func(l *memory.Locker) altered, most int) (illegal, undecided, unknown int) {
	t.Helper()
	for range most {
		l := create(memory.New())
		plan := Plan{
			Lockers: []locker.Locker{l, l, l, l, l}, Shared: true, Ops: 5, Timeout: time.Second, Pause: 2 * time.Millisecond,
			TTLs: []time.Duration{2 * time.Millisecond, 4 * time.Millisecond, time.Hour}, Fences: true,
		}
		history := plan.Run(t.Context(), "k", rand.Uint64())
		for _, op := range history {
			if op.Outcome == Unknown {
				unknown++
			}
		}
		switch Check(history, Leniency{}, 10*time.Second) {
		case porcupine.Illegal:
			illegal++
			return illegal, undecided, unknown
		case porcupine.Unknown:
			undecided++
		}
	}
	return illegal, undecided, unknown
}

// The checker has to reject each broken Locker, and to accept correct ones, also if they lose answers.
func TestChecker(t *testing.T) {
	for name, create := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			illegal, _, _ := judge(t, create, 2000)
			assert.Equal(t, 1, illegal, "no history was rejected")
		})
	}
	t.Run("correct", func(t *testing.T) {
		t.Parallel()
		illegal, undecided, _ := judge(t, func(l *memory.Locker) altered { return altered{Locker: l} }, 300)
		assert.Zero(t, illegal)
		assert.Zero(t, undecided)
	})
	t.Run("correct, and loses answers", func(t *testing.T) {
		t.Parallel()
		illegal, undecided, unknown := judge(t, losing, 300)
		assert.Zero(t, illegal)
		assert.LessOrEqual(t, undecided, 3)
		require.NotZero(t, unknown)
	})
}
