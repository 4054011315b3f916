package memory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	t.Parallel()
	l := New()
	conformance.RunCounter(t, conformance.CounterConfig{
		New: func(testing.TB, string) window.Counter { return l },
	})
}

// Later calls, with any key, remove the counts of windows that have ended.
func TestCounterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		for i := range 50_000 {
			_, err := l.Count(t.Context(), fmt.Sprint(i), 1, time.Second)
			require.NoError(t, err)
		}
		assert.Equal(t, 50_000, countsOf(l))
		time.Sleep(2 * time.Second)
		for range 50_000 {
			_, err := l.Count(t.Context(), "another", 1, time.Hour)
			require.NoError(t, err)
		}
		assert.LessOrEqual(t, countsOf(l), 1)
	})
}

func TestCounterOfNil(t *testing.T) {
	var l *Locker
	_, err := l.Count(t.Context(), "k", 1, time.Second)
	assert.EqualError(t, err, "memory: nil Locker")
}

// countsOf returns how many counts l holds.
func countsOf(l *Locker) (n int) {
	for i := range l.windows.shards {
		s := &l.windows.shards[i]
		s.mu.Lock()
		n += len(s.counts)
		s.mu.Unlock()
	}
	return n
}
