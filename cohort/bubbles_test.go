package cohort_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A package's Locker may be used in one bubble after another. A channel made in one must not get into
// another: that is a fatal error.
func TestBubbles(t *testing.T) {
	for name, last := range map[string]error{"released": nil, "a release without an answer": errors.New("lost")} {
		t.Run(name, func(t *testing.T) {
			b := &faulty{Locker: memory.New()}
			l := cohort.New(b)
			for i := range 3 {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Duration(i) * time.Hour) // all bubbles begin at the same time
					b.onRelease = nil
					lease := mustLock(t, l, time.Second)
					unlocked := make(chan error)
					for range 4 {
						go func() { unlocked <- locker.Do(t.Context(), l, "k", time.Second, nop) }()
					}
					synctest.Wait()
					b.onRelease = func() error { return last }
					require.NoError(t, lease.Unlock(t.Context()))
					var errs []error
					for range 4 {
						errs = append(errs, <-unlocked)
					}
					assert.ErrorIs(t, errors.Join(errs...), last)
				})
			}
		})
	}
}

func nop(context.Context) error { return nil }
