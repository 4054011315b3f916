// Package workers runs the jobs of a fleet, so many at a time and so many a minute.
package workers

import (
	"context"
	"log/slog"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/semaphore"
	"github.com/golockers/locker/window"
)

// Job calls the partner once.
type Job func(ctx context.Context) error

// Pool lets the workers of all replicas run 5 jobs at a time, and 100 a minute.
type Pool struct {
	permits *semaphore.Semaphore
	calls   *window.Limiter
}

// NewPool keeps permits and counts in l, the Locker of any backend but etcd and sqllock.
func NewPool(l interface {
	locker.Locker
	window.Counter
}) Pool {
	return Pool{semaphore.New(l, "partner-jobs", 5), window.New(l, 100, time.Minute)}
}

// Work runs jobs until there are no more or ctx ends. Those that have not begun go to again.
func (p Pool) Work(ctx context.Context, jobs <-chan Job, again func(Job)) {
	for job := range jobs {
		begun := false
		err := p.permits.Do(ctx, 30*time.Second, func(ctx context.Context) error {
			if err := p.calls.Wait(ctx, "partner"); err != nil {
				return err
			}
			begun = true
			return job(ctx)
		})
		if err != nil {
			slog.WarnContext(ctx, "job", "begun", begun, "error", err)
		}
		if !begun {
			again(job)
			select { // Wait and Do may fail at once, and again the next time
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
	}
}
