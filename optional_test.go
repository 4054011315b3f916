package locker_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
	"github.com/stretchr/testify/assert"
)

// features are what CanWait, CanWatch, CanFence, CanInspect and CanList report.
type features struct{ wait, watch, fence, inspect, list bool }

func featuresOf(l locker.Locker) features {
	return features{locker.CanWait(l), locker.CanWatch(l), locker.CanFence(l), locker.CanInspect(l), locker.CanList(l)}
}

// tried is what calls of the optional methods find.
func tried(t *testing.T, l locker.Locker) (f features) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	supported := func(err error) bool { return !errors.Is(err, errors.ErrUnsupported) }
	if l, ok := l.(locker.Waiter); ok {
		_, err := l.Wait(ctx, "k", "t", time.Minute)
		f.wait = supported(err)
	}
	if l, ok := l.(locker.Watcher); ok {
		_, err := l.Watch(ctx, "k")
		f.watch = supported(err)
	}
	if l, ok := l.(locker.Fencer); ok {
		_, _, err := l.Fence(ctx, "k", "t")
		f.fence = supported(err)
	}
	if l, ok := l.(locker.Inspector); ok {
		info, err := l.Inspect(ctx, "k")
		f.inspect = supported(err)
		assert.Equal(t, "k", info.Key)
	}
	if l, ok := l.(locker.Lister); ok {
		f.list = true
		for _, err := range l.List(ctx, "") {
			f.list = supported(err)
		}
	}
	return f
}

// lists is a Locker that can only be listed.
type lists struct{ plain }

func (lists) List(context.Context, string) iter.Seq2[locker.Info, error] {
	return func(func(locker.Info, error) bool) {}
}

// What a Locker can do is the same whether it is wrapped or not, and is what calls find.
func TestFeatures(t *testing.T) {
	all := features{true, true, true, true, true}
	m := memory.New()
	for name, c := range map[string]struct {
		l    locker.Locker
		want features
	}{
		"memory":   {m, all},
		"plain":    {plain{m}, features{}},
		"queue":    {&lined{fake: &fake{}, wait: served}, features{wait: true}},
		"push":     {watching{m}, features{watch: true}},
		"fences":   {struct{ locker.Fencer }{m}, features{fence: true}},
		"inspects": {struct{ locker.Inspector }{m}, features{inspect: true}},
		"lists":    {lists{plain{m}}, features{list: true}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journal{}
			observed := locker.Observed(c.l, j)
			for _, l := range []locker.Locker{c.l, observed, locker.Observed(observed, j)} {
				assert.Equal(t, c.want, featuresOf(l))
				assert.Equal(t, c.want, tried(t, l))
			}
			for _, e := range j.events {
				assert.NotEqual(t, locker.Failed, e.Kind, "an optional method that is missing")
			}
			inCohort := c.want
			inCohort.wait = true
			assert.Equal(t, inCohort, featuresOf(cohort.New(c.l)))
			assert.Equal(t, inCohort, featuresOf(locker.Observed(cohort.New(observed), j)))
			permits := features{wait: true, fence: c.want.fence}
			assert.Equal(t, permits, featuresOf(semaphore.NewLocker(observed, 2)))
			assert.Equal(t, permits, featuresOf(locker.Observed(semaphore.NewLocker(c.l, 2), j)))
		})
	}
	assert.Equal(t, features{}, featuresOf(nil))
}

func served(context.Context, string, string, time.Duration) (time.Time, error) {
	return time.Now().Add(time.Minute), nil
}
