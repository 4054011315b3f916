package stampede

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/singleflight"
)

// strategies are what is compared: ways to get a value that many callers need at the same moment.
var strategies = []strategy{
	{name: "no protection", build: unprotected,
		about: "Every caller that misses queries the database."},
	{name: "in-process only", build: inProcess,
		about: "The callers of a process share one query."},
	{name: "lock only", build: lockOnly,
		about: "Every caller takes the distributed lock, and looks again before it queries."},
	{name: "layered", build: layers, once: true,
		about: "The Loader: callers share one flight in a process, and one query in the fleet."},
	{name: "without a cache", build: withoutCache, once: true,
		about: "The Fleet: callers share one query in the fleet, and nothing is cached."},
	{name: "failing source", build: failing, gets: refused,
		about: "The Loader, and a database that refuses: all callers in the fleet share the error."},
}

type strategy struct {
	name  string
	about string // on the page
	build func(service) load
	once  bool   // it must query the database exactly once in every round
	gets  string // what every caller must get, if it is not the value in the database
}

// load is what every caller calls.
type load func(ctx context.Context, key string) (string, error)

// service is what an application has: a cache, a database, and locks.
type service struct {
	cache  Cache
	locker locker.Locker
	query  load
	atEnd  func(func(context.Context) error) // to be called before the process ends
}

// cached reads the cache, and calls fill when the key is missing.
func (s service) cached(ctx context.Context, key string, fill load) (string, error) {
	if v, ok, err := s.cache.Get(ctx, key); ok || err != nil {
		return v, err
	}
	return fill(ctx, key)
}

// fill reads the database and stores what it got in the cache.
func (s service) fill(ctx context.Context, key string) (string, error) {
	v, err := s.query(ctx, key)
	if err != nil {
		return "", err
	}
	return v, s.cache.Set(ctx, key, v)
}

// unprotected: every caller that misses queries the database.
func unprotected(s service) load {
	return func(ctx context.Context, key string) (string, error) { return s.cached(ctx, key, s.fill) }
}

// inProcess: the callers of one process share one query.
func inProcess(s service) load {
	var flights singleflight.Group[string]
	return func(ctx context.Context, key string) (string, error) {
		v, _, err := flights.Do(ctx, key, func(ctx context.Context) (string, error) {
			return s.cached(ctx, key, s.fill)
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
	return func(ctx context.Context, key string) (string, error) {
		return s.cached(ctx, key, func(ctx context.Context, key string) (v string, err error) {
			lease, err := locker.Lock(ctx, s.locker, key, 10*time.Second)
			if err != nil {
				return "", err
			}
			defer func() {
				if e := lease.Unlock(ctx); e != nil && err == nil {
					err = fmt.Errorf("unlock: %w", e)
				}
			}()
			return s.cached(ctx, key, s.fill)
		})
	}
}

// layers: the callers of a process share one flight, and the flights of the fleet share one query.
func layers(s service) load {
	loader := singleflight.NewLoader(s.locker, s.cache, s.query)
	s.atEnd(loader.Close)
	return loader.Load
}

// withoutCache: the callers of the fleet share one query, whose outcome is kept for a moment, in slots.
// Each strategy has a key of its own, so the cache of the others can have the slots too.
func withoutCache(s service) load {
	calls := singleflight.NewFleet(s.locker, s.cache)
	s.atEnd(calls.Close)
	return func(ctx context.Context, key string) (string, error) {
		v, _, err := calls.Do(ctx, key, func(ctx context.Context) (string, error) { return s.query(ctx, key) })
		return v, err
	}
}

const refused = "a refusal"

// errRefused is the error of a database that refuses. Where all processes name it in WithSentinels,
// errors.Is finds it in an error from any of them.
var errRefused = errors.New("the database refuses")

// failing: the layers, over a source that fails.
func failing(s service) load {
	loader := singleflight.NewLoader(s.locker, s.cache, func(ctx context.Context, key string) (string, error) {
		if _, err := s.query(ctx, key); err != nil {
			return "", err
		}
		return "", errRefused
	}, singleflight.WithSentinels(errRefused))
	s.atEnd(loader.Close)
	return func(ctx context.Context, key string) (string, error) {
		v, err := loader.Load(ctx, key)
		if errors.Is(err, errRefused) {
			return refused, nil
		}
		return v, err
	}
}
