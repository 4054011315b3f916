package cohort

import (
	"testing"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A holder for which no others wait needs no timer of its own, however it got the lock.
func TestNoTimerWithoutContention(t *testing.T) {
	ctx, l := t.Context(), New(memory.New())
	for op, take := range map[string]func() error{
		"acquire": func() error { _, err := l.Acquire(ctx, "k", "t", time.Minute); return err },
		"wait":    func() error { _, err := l.Wait(ctx, "k", "t", time.Minute); return err },
	} {
		require.NoError(t, take(), op)
		s := l.shard("k")
		s.mu.Lock()
		held := s.records["k"].tenure
		assert.Nil(t, held.timer, op)
		s.mu.Unlock()
		released, err := l.Release(ctx, "k", "t")
		require.NoError(t, err)
		require.True(t, released)
	}
}
