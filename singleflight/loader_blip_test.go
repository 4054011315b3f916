package singleflight

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Long after an outage, the processes coordinate the next load of a missing key.
func TestLoadLongAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		var sources atomic.Int32
		var ls []*Loader[string]
		var down atomic.Bool
		down.Store(true)
		for range 20 {
			p := b.process()
			p.onAcquire = func(context.Context, string) error {
				if down.Load() {
					return errDown
				}
				return nil
			}
			l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
				sources.Add(1)
				time.Sleep(time.Second)
				return "fresh", nil
			})
			ls = append(ls, l)
			require.NoError(t, (<-goLoad(t.Context(), l, "other")).err)
			b.remove("other")
		}
		down.Store(false)
		time.Sleep(time.Minute) // in which there is no miss, and so no probe
		sources.Store(0)
		var cs []<-chan loaded
		for _, l := range ls {
			cs = append(cs, goLoad(t.Context(), l, "k"))
		}
		for _, c := range cs {
			require.Equal(t, loaded{"fresh", nil, time.Second}, <-c)
		}
		require.EqualValues(t, 1, sources.Load())
	})
}
