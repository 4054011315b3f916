package cohort

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rests calls nextRest n times, each after a tenure that was given up for others, and returns how
// many rests were left out before each one that was not.
func (r *record) rests(n int) (skipped []int) {
	left := 0
	for range n {
		r.yield = true
		if r.nextRest() == 0 {
			left++
			continue
		}
		skipped, left = append(skipped, left), 0
	}
	return skipped
}

// A process rests after its tenure. While no other process uses that, it rests less often.
func TestRests(t *testing.T) {
	r := &record{locker: New(memory.New()), turns: turns{unqueued: true}}
	assert.Zero(t, r.nextRest(), "it has had no tenure")
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 7, 7}, r.rests(52))
	for range 10 {
		assert.Zero(t, r.nextRest(), "it has rested")
	}
	r.refused = true
	assert.Equal(t, []int{0, 1, 2}, r.rests(6), "others have used the last rest")
	r.unqueued = false
	assert.Empty(t, r.rests(10))
}

// A rest is long enough for others to notice that the lock is free.
func TestRestsForLongEnough(t *testing.T) {
	for _, unwatched := range []bool{false, true} {
		most := 4 * time.Millisecond
		if unwatched {
			most = 50 * time.Millisecond
		}
		for range 100 {
			r := &record{locker: New(memory.New()), turns: turns{yield: true, unqueued: true, unwatched: unwatched}}
			rest := r.nextRest()
			assert.GreaterOrEqual(t, rest, most/2)
			assert.Less(t, rest, most)
		}
	}
}

// plain has the methods of every Locker alone.
type plain struct{ locker.Locker }

// A drive notes what the backend cannot do, and whether another process has the lock.
func TestDriverNotes(t *testing.T) {
	ctx := t.Context()
	m := memory.New()
	l := New(plain{m})
	r := l.shard("k").record(l, "k")
	acquire := func(token string) {
		_, err := (*driver)(r).Acquire(ctx, "k", token, time.Minute)
		require.NoError(t, err)
	}
	acquire("a")
	assert.False(t, r.refused)
	acquire("b")
	assert.True(t, r.refused)
	_, err := (*driver)(r).Watch(ctx, "k")
	assert.Error(t, err)
	_, err = (*driver)(r).Wait(ctx, "k", "b", time.Minute)
	assert.Error(t, err)
	assert.True(t, r.unqueued && r.unwatched)

	l = New(m)
	r = l.shard("k").record(l, "k")
	_, err = (*driver)(r).Watch(ctx, "k")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = (*driver)(r).Wait(short, "k", "b", time.Minute)
	require.Error(t, err)
	assert.False(t, r.unqueued || r.unwatched)
}
