package semaphore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A waiter that has left makes no subscription. synctest fails if a goroutine remains.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocker(memory.New(), 3)
		r := l.enter("k")
		woken, err := (&head{room: r}).Watch(t.Context(), "k")
		require.NoError(t, err)
		r.freed(1)
		<-woken
		l.leave(r)
		_, err = (&head{room: r}).Watch(t.Context(), "k")
		require.ErrorIs(t, err, errLeft)
		assert.Empty(t, l.rooms)
	})
}

// The state of a permit is forgotten at a wake-up, even one during the attempt, and otherwise after
// a short time.
func TestLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocker(memory.New(), 1)
		r := l.enter("k")
		defer l.leave(r)
		taken := func() bool {
			_, isTaken := r.look(0)
			return isTaken
		}
		attempt := func() { // that is refused
			version, _ := r.look(0)
			r.refused(0, version)
		}
		attempt()
		assert.False(t, taken(), "it is not watched")
		_, err := (&head{room: r}).Watch(t.Context(), "k")
		require.NoError(t, err)
		attempt()
		assert.True(t, taken())
		r.freed(0)
		assert.False(t, taken())
		version, _ := r.look(0)
		r.freed(0)
		r.refused(0, version)
		assert.False(t, taken(), "it was freed after the attempt began")
		attempt()
		time.Sleep(recent)
		assert.False(t, taken())
	})
}

// Tokens whose permits were lost are forgotten some time after their ttl.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocker(memory.New(), 1000)
		for range 20 {
			for range 100 {
				_, err := locker.TryLock(t.Context(), l, "k", time.Second)
				require.NoError(t, err)
			}
			time.Sleep(time.Minute)
		}
		assert.LessOrEqual(t, len(l.known.of), 256)
	})
}

// Without a queue on the backend, waiters get their turns in order, and leave when ctx ends.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocker(plain{memory.New()}, 1)
		held, err := locker.Lock(t.Context(), l, "k", time.Hour)
		require.NoError(t, err)
		var order []int
		for i := range 5 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if i == 2 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				}
				defer cancel()
				err := locker.Do(ctx, l, "k", time.Hour, func(context.Context) error {
					order = append(order, i)
					return nil
				})
				if i == 2 {
					assert.ErrorIs(t, err, locker.ErrHeld)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					assert.NoError(t, err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Minute)
		require.NoError(t, held.Unlock(t.Context()))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []int{0, 1, 3, 4}, order)
		assert.Empty(t, l.rooms)
		assert.Empty(t, l.known.of)
	})
}

// plain has only the methods of a Locker.
type plain struct{ locker.Locker }
