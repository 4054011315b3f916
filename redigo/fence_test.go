package redigo

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func mint(tb testing.TB, l *Locker, key, token string) uint64 {
	tb.Helper()
	number, ok, err := l.Fence(background, key, token)
	isOK(tb)(ok, err)
	return number
}

// Numbers go on above all earlier ones when the counter is lost, by itself or with all data.
func TestFenceOutlivesTheCounter(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	other := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	before := raw.now()
	last := mint(t, l, "k", "t")
	assert.GreaterOrEqual(t, last, uint64(before))
	assert.LessOrEqual(t, last, uint64(raw.now()))
	for name, lose := range map[string]func(){
		"the counter is lost": func() { raw.do("DEL", "!locker:fence") },
		"all data is lost": func() {
			raw.do("FLUSHALL")
			isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		},
		"it was created by other means": func() { raw.do("SET", "!locker:fence", 41) },
		"it is negative":                func() { raw.do("SET", "!locker:fence", -5) },
		"nothing is lost":               func() {},
	} {
		for range 20 {
			lose()
			first := mint(t, l, "k", "t")
			require.Greater(t, first, last, name)
			last = mint(t, other, "k", "t")
			require.Equal(t, first+1, last, name)
		}
	}

	raw.do("DEL", "!locker:fence")
	_, ok, err := l.Fence(background, "k", "another")
	isRefused(t)(ok, err)
	require.Greater(t, mint(t, l, "k", "t"), last)

	w.requests()
	raw.do("DEL", "!locker:fence")
	mint(t, other, "k", "t")
	assert.Equal(t, []string{minting, look, seeding}, w.requests())
	mint(t, other, "k", "t")
	assert.Equal(t, []string{minting}, w.requests())

	isOK(t)(l.Release(background, "k", "t"))
	assert.Equal(t, []any{[]byte("!locker:fence")}, raw.do("KEYS", "*"), "more is left than the counter")
}

// Concurrent callers that find the counter lost get different numbers, all greater than the earlier
// ones.
func TestRaceForLostCounter(t *testing.T) {
	t.Parallel()
	const clients, each, rounds = 10, 10, 5
	srv, l, raw := newServer(t)
	isOK(t)(l.Acquire(background, "k", "t", time.Hour))
	last := mint(t, l, "k", "t")
	lockers := make([]*Locker, clients)
	for i := range lockers {
		lockers[i] = New(newPool(t, srv.Addr))
	}
	for range rounds {
		var mu sync.Mutex
		var numbers []uint64
		var all sync.WaitGroup
		begin := make(chan struct{})
		raw.do("DEL", "!locker:fence")
		for i := range clients * each {
			all.Go(func() {
				<-begin
				number, ok, err := lockers[i%clients].Fence(background, "k", "t")
				assert.NoError(t, err)
				assert.True(t, ok)
				mu.Lock()
				defer mu.Unlock()
				numbers = append(numbers, number)
			})
		}
		close(begin)
		all.Wait()
		require.Len(t, numbers, clients*each)
		slices.Sort(numbers)
		require.Greater(t, numbers[0], last)
		require.Len(t, slices.Compact(slices.Clone(numbers)), clients*each, "a number twice")
		last = numbers[len(numbers)-1]
	}
}

// A call that is about to set the counter does not set it if another has done so meanwhile, even if
// the counter was lost again.
func TestLateSeed(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	slow := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Hour))
	isOK(t)(slow.Acquire(background, "k", "t", time.Hour))
	for _, lostAgain := range []bool{false, true} {
		raw.do("DEL", "!locker:fence")
		paused, resume := w.pauseBefore(t, "GETSET")
		late := make(chan uint64, 1)
		go func() {
			number, ok, err := slow.Fence(background, "k", "t")
			assert.NoError(t, err)
			assert.True(t, ok)
			late <- number
		}()
		<-paused
		last := mint(t, l, "k", "t")
		if lostAgain {
			raw.do("DEL", "!locker:fence")
			last = mint(t, l, "k", "t")
		}
		resume()
		number := <-late
		assert.Greater(t, number, last)
		assert.Greater(t, mint(t, l, "k", "t"), number)
	}
}

// If the counter is lost before every step, Fence gives up with an error.
func TestCounterIsLostAgain(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	slow := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Hour))
	w.onSending(func(request string) {
		if request == seeding { // another is faster, but then the counter is lost
			mint(t, l, "k", "t")
		}
		raw.do("DEL", "!locker:fence")
	})
	_, ok, err := slow.Fence(background, "k", "t")
	w.quiet()
	assert.ErrorIs(t, err, errChanged)
	assert.False(t, ok)
	assert.Equal(t, []string{minting, look, seeding, look, seeding, look, seeding}, w.requests())
}

// Another may seed a counter that was lost, and it may be lost again before the number is taken.
func TestFenceLostTwice(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	slow := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Hour))
	last := mint(t, l, "k", "t")
	raw.do("DEL", "!locker:fence")
	mints := 0
	w.onSending(func(request string) {
		switch request {
		case look:
			last = max(last, mint(t, l, "k", "t")) // it seeds the counter
		case minting:
			if mints++; mints == 2 {
				raw.do("DEL", "!locker:fence")
			}
		}
	})
	number, ok, err := slow.Fence(background, "k", "t")
	w.quiet()
	isOK(t)(ok, err)
	assert.Greater(t, number, last)
	assert.Equal(t, []string{minting, look, minting, look, minting}, w.requests())
}

// With the client's clock the counter starts at that.
func TestFenceByTheClientsClock(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t, "--rename-command", "TIME", "")
	l := New(newPool(t, srv.Addr), WithClientClock())
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	before := time.Now().UnixMicro()
	number := mint(t, l, "k", "t")
	assert.GreaterOrEqual(t, number, uint64(before))
	assert.LessOrEqual(t, number, uint64(time.Now().UnixMicro()))
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	next, ok, err := l.Fence(ctx, "k", "t")
	isOK(t)(ok, err)
	assert.Equal(t, number+1, next)
}

// On a server whose clock is before 2001 the numbers grow all the same.
func TestFenceOnAnOldClock(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	var by atomic.Int64
	by.Store(1000 - raw.now()/1e6)
	pool := newPool(t, srv.Addr)
	dial := pool.Dial
	pool.Dial = func() (redis.Conn, error) {
		conn, err := dial()
		return shifted{conn, &by}, err
	}
	l := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Hour))
	var last uint64
	for i := range 20 {
		if i == 10 { // the clock is set back
			by.Add(-500)
		}
		number := mint(t, l, "k", "t")
		require.Greater(t, number, last)
		require.Less(t, number, uint64(seeded))
		last = number
	}
}
