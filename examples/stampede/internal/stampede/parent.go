package stampede

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// result is the outcome of one strategy.
type result struct {
	strategy strategy
	first    round // opens connections: it has to be right, but is not in the table
	rounds   []round
}

// round is one expiry of the key under one strategy.
type round struct {
	queries   int64
	byProcess []int64 // queries
	requests  int64
	median    time.Duration
	last      time.Duration
}

// run plays the rounds of every strategy.
func run(ctx context.Context, backend Backend, s settings, t table) (results []result, err error) {
	defer t.clear()
	r, err := setUp(ctx, backend, s, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	t.head()
	for _, strategy := range strategies {
		result := result{strategy: strategy}
		for i := range s.rounds + 1 {
			t.progress(strategy.name, i, s.rounds)
			one, err := r.run(ctx, strategy, command{Goroutines: s.goroutines, Load: s.load})
			if err != nil {
				return results, fmt.Errorf("%s, round %d: %w", strategy.name, i, err)
			}
			if i == 0 {
				result.first = one
			} else {
				result.rounds = append(result.rounds, one)
			}
		}
		t.row(result)
		results = append(results, result)
	}
	return results, nil
}

// rounds is what a round needs.
type rounds struct {
	db      *database
	server  Server
	fleet   *workers
	prefix  string // of the keys
	number  int
	closers []func()
}

// setUp starts the server, the database and the fleet. If seen is not nil, several goroutines call
// it with the samples of rounds that request them.
func setUp(ctx context.Context, backend Backend, s settings, seen func(process int, now sample)) (_ *rounds, err error) {
	r := &rounds{prefix: "stampede/" + rand.Text() + "/"} // others may use the server as well
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	srv, addr, err := backend.open(ctx, s.backend)
	if err != nil {
		return nil, err
	}
	r.server = srv
	r.atClose(srv.Close)
	dir, err := os.MkdirTemp("", "stampede-")
	if err != nil {
		return nil, err
	}
	r.atClose(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "items.db")
	if r.db, err = openDatabase(file); err != nil {
		return nil, err
	}
	r.atClose(func() { r.db.close() })
	if err := r.db.create(ctx); err != nil {
		return nil, err
	}
	r.atClose(func() {
		for _, strategy := range strategies {
			_ = srv.Expire(context.WithoutCancel(ctx), r.key(strategy))
		}
	})
	r.fleet, err = startWorkers(s.processes, config{Backend: addr, Database: file, Timeout: s.timeout}, seen)
	if err != nil {
		return nil, err
	}
	r.atClose(r.fleet.stop)
	return r, nil
}

func (r *rounds) atClose(f func()) { r.closers = append(r.closers, f) }

// close ends everything that setUp started.
func (r *rounds) close() {
	for _, f := range slices.Backward(r.closers) {
		f()
	}
}

// key returns the key of a strategy.
func (r *rounds) key(s strategy) string { return r.prefix + strings.ReplaceAll(s.name, " ", "-") }

// run changes the value in the database, lets the cached one expire and sends the fleet off.
func (r *rounds) run(ctx context.Context, s strategy, c command) (round, error) {
	c.Strategy, c.Key = s.name, r.key(s)
	r.number++
	want := fmt.Sprintf("value %d", r.number)
	if err := r.db.set(ctx, c.Key, want); err != nil {
		return round{}, err
	}
	if err := r.server.Expire(ctx, c.Key); err != nil {
		return round{}, fmt.Errorf("expire the key: %w", err)
	}
	before, err := r.server.Requests(ctx)
	if err != nil {
		return round{}, err
	}
	c.Start = time.Now().Add(50 * time.Millisecond) // so that the command arrives everywhere in time
	replies, err := r.fleet.exchange(ctx, c)
	if err != nil {
		return round{}, err
	}
	after, err := r.server.Requests(ctx)
	if err != nil {
		return round{}, err
	}
	one, err := gather(replies, cmp.Or(s.gets, want))
	one.requests = after - before
	return one, err
}

// gather combines the replies of all processes. If a caller did not get what
// it should, it returns an error.
func gather(replies []reply, want string) (round, error) {
	var one round
	var took []time.Duration
	for _, r := range replies {
		if r.Failed > 0 {
			return one, fmt.Errorf("%d callers of a process failed: %s", r.Failed, r.Error)
		}
		for value, callers := range r.Values {
			if value != want {
				return one, fmt.Errorf("%d callers of a process got %q instead of %q", callers, value, want)
			}
		}
		took = append(took, r.Took...)
		one.queries += r.Queries
		one.byProcess = append(one.byProcess, r.Queries)
	}
	slices.Sort(took)
	one.median, one.last = took[len(took)/2], took[len(took)-1]
	return one, nil
}

// verdict is an error when a strategy that must query the database exactly once did not do so in
// every round.
func verdict(results []result) error {
	for _, r := range results {
		if !r.strategy.once {
			continue
		}
		wrong := 0
		for _, one := range append(r.rounds, r.first) {
			if one.queries != 1 {
				wrong++
			}
		}
		if wrong > 0 {
			return fmt.Errorf("%s: not exactly one database query in %d of %d rounds", r.strategy.name, wrong, len(r.rounds)+1)
		}
	}
	return nil
}
