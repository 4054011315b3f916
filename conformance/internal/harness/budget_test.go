package harness

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counts counts how many are inside at a time.
type counts struct{ now, most atomic.Int64 }

func (c *counts) inside(do func()) {
	n := c.now.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	do()
	c.now.Add(-1)
}

// counted is a correct Locker that counts the Acquires.
type counted struct {
	*memory.Locker
	requests *counts
	takes    time.Duration
}

func (c counted) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	c.requests.inside(func() { time.Sleep(c.takes) })
	return c.Locker.Acquire(ctx, key, token, ttl)
}

// Two suites at the same time keep to one budget.
func TestBudget(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes                    time.Duration
		mostChecks, mostAcquires int64
	}{
		"quick requests": {yields / 2, checksPerCore, requestsPerCore},
		// Those that take long do not count, or a Locker that blocks would block the suite.
		"requests that block": {10 * time.Second, checksPerCore, 4 * checksPerCore},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var checks, requests counts
				budget := NewBudget(1)
				var list []Check
				for i := range 2 * checksPerCore {
					list = append(list, Check{Name: "self/" + string(rune('a'+i)), Run: func(e *Env) {
						checks.inside(func() {
							e.Each(4, func(int) { e.A.Takes(e.Key(), e.Token(), time.Hour, "the key is fresh") })
							e.Sleep(time.Second)
						})
					}})
				}
				var suites sync.WaitGroup
				for range 2 {
					l := counted{memory.New(), new(counts), 0}
					s, err := NewSuite(t, Config{New: func(testing.TB, string) locker.Locker { return l }}, list)
					require.NoError(t, err)
					l.requests, l.takes = &requests, test.takes
					for i := range s.Lockers {
						s.Lockers[i] = l
					}
					s.Budget = budget
					suites.Go(func() {
						defer s.Close()
						for _, r := range s.RunAll(t) {
							assert.False(t, r.Failed() || r.Inconclusive(), r.Printed())
						}
					})
				}
				suites.Wait()
				assert.Equal(t, test.mostChecks, checks.most.Load())
				assert.Equal(t, test.mostAcquires, requests.most.Load())
			})
		})
	}
}

// A check that runs again is alone in its run, and the third time in the process.
func TestAgainAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var active atomic.Int64
		budget := NewBudget(1)
		beside := make(chan int64, 2)
		unsure := Check{Name: "self/unsure", Run: func(e *Env) {
			if e.stretch < 4 {
				e.Inconclusive("not yet")
			}
			beside <- active.Load()
		}}
		busy := func(e *Env) {
			active.Add(1)
			defer active.Add(-1)
			e.Sleep(time.Minute)
		}
		var suites sync.WaitGroup
		for range 2 {
			s, err := NewSuite(t, inMemory(), []Check{unsure, {Name: "self/busy", Run: busy}, {Name: "self/busier", Run: busy}})
			require.NoError(t, err)
			s.Budget = budget
			suites.Go(func() { defer s.Close(); s.RunAll(t) })
		}
		suites.Wait()
		assert.Zero(t, <-beside)
		assert.Zero(t, <-beside)
	})
}

// Places are given in the order in which they were asked for, so one that needs all of them gets them.
func TestRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := room{size: 3}
		order := make(chan int, 4)
		var all sync.WaitGroup
		take := func(id, n int) {
			all.Go(func() {
				r.take(n)
				order <- id
				time.Sleep(time.Second)
				r.give(n)
			})
			time.Sleep(time.Millisecond)
		}
		take(1, 1)
		take(2, 1)
		take(3, 100)
		take(4, 1)
		all.Wait()
		assert.Equal(t, []int{1, 2, 3, 4}, []int{<-order, <-order, <-order, <-order})
		assert.Zero(t, r.taken)
	})
}
