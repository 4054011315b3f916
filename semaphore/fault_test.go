package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// losing loses the replies to Acquires, and counts Releases.
type losing struct {
	*memory.Locker
	releases atomic.Int64
}

func (l *losing) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	_, _ = l.Locker.Acquire(ctx, key, token, ttl)
	return false, errors.New("lost")
}

func (l *losing) Release(ctx context.Context, key, token string) (bool, error) {
	l.releases.Add(1)
	return l.Locker.Release(ctx, key, token)
}

// After a lost reply one cleanup releases the one permit that the token may hold.
func TestLostReply(t *testing.T) {
	for _, n := range []int{1, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			l := &losing{Locker: memory.New()}
			s := semaphore.New(l, "imports", n)
			_, err := s.TryAcquire(t.Context(), time.Minute)
			require.ErrorContains(t, err, "lost")
			time.Sleep(10 * time.Second)
			assert.EqualValues(t, 1, l.releases.Load())

			_, err = s.Acquire(t.Context(), time.Minute)
			require.ErrorContains(t, err, "lost")
			time.Sleep(10 * time.Second)
			assert.EqualValues(t, 3, l.releases.Load(), "the turn's and the permit's")
			for i := range n {
				info, err := l.Inspect(t.Context(), fmt.Sprintf("imports/%d", i+1))
				require.NoError(t, err)
				assert.Empty(t, info.Token)
			}
			rooms, tokens := s.Size()
			assert.Zero(t, rooms)
			assert.Zero(t, tokens)
		})
	}
}

// The request for a token that is not known ends with its context, however many permits there are.
func TestContextEndsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &hanging{Locker: memory.New()}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.Resume(ctx, semaphore.NewLocker(l, 1<<30), "imports", "token", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualValues(t, 1, l.extensions.Load())
	})
}

// hanging does not answer Extends, and counts them.
type hanging struct {
	locker.Locker
	extensions atomic.Int64
}

func (l *hanging) Extend(ctx context.Context, _, _ string, _ time.Duration) (bool, error) {
	l.extensions.Add(1)
	<-ctx.Done()
	return false, ctx.Err()
}

// Waiters whose context ends during an attempt report that all permits were held.
func TestContextEndsDuringAnAttempt(t *testing.T) {
	for range 20 { // in any order
		synctest.Test(t, func(t *testing.T) {
			l := &queueless{Locker: memory.New()}
			s := semaphore.New(l, "imports", 1)
			_, err := s.Acquire(t.Context(), time.Hour)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			for range 3 {
				go func() {
					_, err := s.Acquire(ctx, time.Minute)
					assert.ErrorIs(t, err, context.Canceled)
					assert.ErrorIs(t, err, locker.ErrHeld)
				}()
			}
			time.Sleep(time.Second)
			l.hangs.Store(true)
			time.Sleep(time.Second)
			cancel()
			synctest.Wait()
			l.hangs.Store(false)
			time.Sleep(time.Minute)
		})
	}
}

// A caller that has its permit does not lose it while the end of its turn gets no answer.
func TestTurnWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &keeping{Locker: memory.New()}
		s := semaphore.New(l, "imports", 2)
		for range 2 { // the second one waits until the turn has expired
			start := time.Now()
			lease, err := s.Acquire(t.Context(), 3*time.Second)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, time.Until(lease.Deadline()), 2*time.Second)
			assert.Less(t, time.Since(start), 10*time.Second)
			lease.Detach()
		}
		time.Sleep(time.Minute)
	})
}

// keeping does not answer Releases.
type keeping struct{ *memory.Locker }

func (*keeping) Release(ctx context.Context, _, _ string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// A backend may keep queues, but none for this key, as PostgreSQL behind a pooler. The waiters of a
// process are served in order, and only the first of them polls.
func TestNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &queueless{Locker: memory.New()}
		s := semaphore.New(l, "imports", 1)
		held, err := s.Acquire(t.Context(), time.Hour)
		require.NoError(t, err)
		var order, want []int
		for i := range 10 {
			go func() {
				assert.NoError(t, s.Do(t.Context(), time.Minute, func(context.Context) error {
					order = append(order, i)
					return nil
				}))
			}()
			synctest.Wait()
			want = append(want, i)
		}
		time.Sleep(10 * time.Second)
		assert.Less(t, l.attempts.Load(), int64(500), "one that polls makes 20 to 40 a second")
		require.NoError(t, held.Unlock(t.Context()))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, want, order)
		info, err := l.Locker.(locker.Inspector).Inspect(t.Context(), "imports/queue")
		require.NoError(t, err)
		assert.Empty(t, info.Token)
	})
}

// queueless counts Acquires. If it hangs, they are not answered.
type queueless struct {
	locker.Locker
	attempts atomic.Int64
	hangs    atomic.Bool
}

func (l *queueless) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	l.attempts.Add(1)
	if l.hangs.Load() {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return l.Locker.Acquire(ctx, key, token, ttl)
}

func (l *queueless) Wait(context.Context, string, string, time.Duration) (time.Time, error) {
	return time.Time{}, errors.ErrUnsupported
}
