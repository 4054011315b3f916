package stampede

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/singleflight"
)

// strategies are what is compared: ways to get the value of a key that may be missing from the cache.
var strategies = []strategy{
	{"no protection", "Every caller that misses queries the database.", unprotected},
	{"in-process only", "The callers of a process share one query.", inProcess},
	{"lock only", "Every caller takes the distributed lock, and looks again before it queries.", lockOnly},
	{layered, "The Loader: callers share one flight in a process, and one query in the fleet.", layers},
}

// layered is the strategy that must query the database exactly once in every round.
const layered = "layered"

type strategy struct {
	name  string
	about string // on the page
	build func(service) load
}

// load is what every caller calls.
type load func(context.Context) (string, error)

// service is what an application has: a cache, a database, and locks.
type service struct {
	key    string
	cache  Cache
	locker locker.Locker
	query  func(ctx context.Context, key string) (string, error)
	atEnd  func(func(context.Context) error) // to be called before the process ends
}

// cached reads the cache, and calls fill when the key is missing.
func (s service) cached(ctx context.Context, fill load) (string, error) {
	if v, ok, err := s.cache.Get(ctx, s.key); ok || err != nil {
		return v, err
	}
	return fill(ctx)
}

// fill reads the database and stores what it got in the cache.
func (s service) fill(ctx context.Context) (string, error) {
	v, err := s.query(ctx, s.key)
	if err != nil {
		return "", err
	}
	return v, s.cache.Set(ctx, s.key, v)
}

// unprotected: every caller that misses queries the database.
func unprotected(s service) load {
	return func(ctx context.Context) (string, error) { return s.cached(ctx, s.fill) }
}

// inProcess: the callers of one process share one query.
func inProcess(s service) load {
	var flights singleflight.Group[string]
	return func(ctx context.Context) (string, error) {
		v, _, err := flights.Do(ctx, s.key, func(ctx context.Context) (string, error) {
			return s.cached(ctx, s.fill)
		})
		return v, err
	}
}

// lockOnly: every caller that misses takes the distributed lock and looks again once it has it. On a
// backend that keeps no queue, a release wakes all waiters and all but one are refused, so there one
// caller of each process waits for the others.
func lockOnly(s service) load {
	if !locker.CanWait(s.locker) {
		s.locker = cohort.New(s.locker)
	}
	return func(ctx context.Context) (string, error) {
		return s.cached(ctx, func(ctx context.Context) (v string, err error) {
			lease, err := locker.Lock(ctx, s.locker, s.key, 10*time.Second)
			if err != nil {
				return "", err
			}
			defer func() {
				if e := lease.Unlock(ctx); e != nil && err == nil {
					err = fmt.Errorf("unlock: %w", e)
				}
			}()
			return s.cached(ctx, s.fill)
		})
	}
}

// layers: the callers of a process share one flight, and the flights of the fleet share one query.
func layers(s service) load {
	loader := singleflight.NewLoader[string](s.locker, s.cache, s.query)
	s.atEnd(loader.Close)
	return func(ctx context.Context) (string, error) { return loader.Load(ctx, s.key) }
}
