package cohort

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wait puts a new waiter in the queue.
func (q *queue) wait(ctx context.Context) *waiter {
	w := q.newWaiter(ctx, "a", time.Minute)
	q.push(w)
	return w
}

// A waiter is reused if its Wait got the lock, and not while anything may still refer to it.
func TestReuse(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		end  func(q *queue, w *waiter)
		want bool
	}{
		"it has the lock":                 {func(q *queue, w *waiter) { q.tell(w); require.True(t, w.awaitTold()); w.over.Store(true) }, true},
		"it was told and has not noticed": {func(q *queue, w *waiter) { q.tell(w) }, false},
		"it was told and leaves":          {func(q *queue, w *waiter) { q.tell(w); require.True(t, w.awaitTold()) }, false},
		"it has left": {func(q *queue, w *waiter) {
			w.ctx = canceled
			require.False(t, w.awaitTold())
			q.remove(w)
		}, false},
		"a drive refers to it": {func(q *queue, w *waiter) {
			w.drives = true
			q.tell(w)
			require.True(t, w.awaitTold())
			w.over.Store(true)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var q queue
			w := q.wait(t.Context())
			c.end(&q, w)
			q.reuse(w)
			again := q.wait(t.Context())
			require.Equal(t, c.want, again == w)
			q.tell(again)
			assert.True(t, again.awaitTold())
			assert.Nil(t, q.first)
		})
	}
}

// A reused waiter is like a new one, and no more than a few are kept.
func TestSpares(t *testing.T) {
	var q queue
	var all []*waiter
	for range 2 * maxSpares {
		all = append(all, q.wait(t.Context()))
	}
	for _, w := range all {
		w.deadline = time.Now()
		q.tell(w)
		require.True(t, w.awaitTold())
		w.over.Store(true)
		q.reuse(w)
	}
	assert.Equal(t, maxSpares, q.spares)
	for w := q.spare; w != nil; w = w.next {
		assert.Nil(t, w.ctx, "a context is kept alive")
		assert.Empty(t, w.token)
	}
	for range maxSpares {
		w := q.newWaiter(t.Context(), "", 0)
		assert.Contains(t, all, w)
		assert.Empty(t, w.told)
		assert.False(t, w.left || w.over.Load())
		assert.True(t, w.prev == nil && w.next == nil)
	}
	assert.Zero(t, q.spares)
	assert.Nil(t, q.spare)

	w := q.wait(t.Context())
	q.tell(w)
	require.True(t, w.awaitTold())
	w.over.Store(true)
	q.reuse(w)
	q.dropSpares()
	assert.Zero(t, q.spares)
	assert.Nil(t, q.spare)
}
