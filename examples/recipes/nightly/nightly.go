// Package nightly runs a job once a period, however many replicas are to run it.
package nightly

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/golockers/locker"
)

// JobLocker is a gocron.Locker.
type JobLocker struct {
	Locker  locker.Locker
	MinHold time.Duration // longer than the replicas are apart, shorter than the period
	MaxHold time.Duration // longer than the job takes
}

func (j JobLocker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	return locker.TryLock(ctx, j.Locker, "job/"+job, time.Minute,
		locker.WithKeepAlive(), locker.WithMinHold(j.MinHold), locker.WithMaxHold(j.MaxHold))
}

// Schedule makes one replica write the report, at three o'clock every night.
func Schedule(s gocron.Scheduler, l locker.Locker, writeReport func(context.Context) error) error {
	_, err := s.NewJob(
		gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(3, 0, 0))),
		gocron.NewTask(writeReport),
		gocron.WithName("nightly-report"),
		gocron.WithDistributedJobLocker(JobLocker{l, time.Hour, 6 * time.Hour}))
	return err
}

// Every runs job once a period in one of the replicas that call it, until ctx ends.
func Every(ctx context.Context, l locker.Locker, name string, period time.Duration, job func(context.Context) error) {
	ttl := min(period/2, time.Minute)
	for tick := time.Tick(period); ; {
		_, err := locker.TryDo(ctx, l, "job/"+name, ttl, job,
			locker.WithMinHold(period*9/10), locker.WithMaxHold(3*period))
		if err != nil {
			slog.ErrorContext(ctx, "job failed", "job", name, "error", err)
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}
