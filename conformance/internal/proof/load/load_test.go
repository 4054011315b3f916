package load

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func config(l locker.Locker) Config {
	return Config{Lockers: []locker.Locker{l, l}, Workers: 4, Keys: []string{"a", "b"}, TTL: time.Minute,
		Hold: 2 * time.Millisecond, Wait: time.Second, Fence: true}
}

func TestLoad(t *testing.T) {
	l := Start(config(memory.New()))
	defer l.stop()
	require.Eventually(t, func() bool { return l.Leases() > 100 && l.fenced.Load() > 0 }, time.Minute, 10*time.Millisecond)
	r := l.Stop(t)
	assert.Positive(t, r.Leases)
	assert.Empty(t, r.Overlaps)
	assert.Zero(t, r.Errors)
	assert.Zero(t, r.Lost)
	assert.Positive(t, r.Fences)
	assert.Zero(t, r.Backward)
}

// backward mints numbers that shrink.
type backward struct{ *memory.Locker }

func (b backward) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	n, ok, err := b.Locker.Fence(ctx, key, token)
	return 1<<62 - n, ok, err
}

func TestLoadFindsFences(t *testing.T) {
	l := Start(config(backward{memory.New()}))
	defer l.stop()
	require.Eventually(t, func() bool { return l.backward.Load() > 0 }, time.Minute, 10*time.Millisecond)
	l.Stop(t)
}

// forgetful grants a lock although it is held, some of the time.
type forgetful struct{ *memory.Locker }

func (f forgetful) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if ok, err := f.Acquire(ctx, key, token, ttl); ok || err != nil {
		return time.Now().Add(ttl), err
	}
	if time.Now().UnixMicro()%4 == 0 {
		return time.Now().Add(ttl), nil
	}
	return f.Locker.Wait(ctx, key, token, ttl)
}

// A Locker that grants a lock twice is found out.
func TestLoadFindsOverlaps(t *testing.T) {
	l := Start(config(forgetful{memory.New()}))
	defer l.stop()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(overlaps(l.beliefs)) > 0
	}, time.Minute, 10*time.Millisecond)
	assert.Positive(t, l.Stop(t).Lost)
}

func TestOverlaps(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	belief := func(key, token string, from, until int) Belief {
		return Belief{key, token, at(from), at(from), at(until)}
	}
	assert.Empty(t, overlaps([]Belief{belief("a", "1", 0, 10), belief("a", "2", 10, 20), belief("b", "3", 5, 15)}))
	assert.Empty(t, overlaps([]Belief{belief("a", "1", 0, 10), belief("a", "1", 5, 20)}), "one token")
	assert.Empty(t, overlaps([]Belief{belief("a", "1", 0, 10), belief("a", "2", 5, 5)}), "it was lost at once")
	long, second, third := belief("a", "1", 0, 100), belief("a", "2", 10, 20), belief("a", "3", 30, 40)
	assert.Equal(t, []Overlap{{long, second}, {long, third}}, overlaps([]Belief{third, second, long}))
}
