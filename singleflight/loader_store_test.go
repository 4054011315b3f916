package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A slow store and a slow release do not wait for each other: that would stop the clock of a synctest bubble.
func TestStoreAndReleaseSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
		p.onRelease = func(context.Context) (bool, error) { time.Sleep(2 * time.Second); return true, nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
		time.Sleep(time.Minute)
		require.Equal(t, 1, p.count("release"))
		requireIdle(t, l, b, "other")
	})
}

// A Set that never returns does not keep its key from being stored later, and leaves nothing behind.
func TestStoreNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		stuck := make(chan struct{})
		first := true
		p.onSet = func(context.Context) error {
			if first {
				first = false
				<-stuck
			}
			return nil
		}
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		load := func() { require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v) }
		load()
		time.Sleep(50 * time.Second)
		load()
		synctest.Wait()
		require.Equal(t, 1, p.count("set"), "no second one beside it yet")
		time.Sleep(15 * time.Second)
		load()
		synctest.Wait()
		require.Equal(t, 2, p.count("set"))
		load()
		require.Equal(t, 3, p.count("source"), "stored")
		requireIdle(t, l, b, "k")
		close(stuck)
		requireIdle(t, l, b, "k")
	})
}
