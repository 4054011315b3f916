package stampede

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/fleet"
)

// The parent sends a process of its fleet one config, which is answered by an empty reply, and then
// commands. The answer to each is a reply, and before it come samples if the command asks for them.

type config struct {
	Backend  Address
	Database string // its file
	Timeout  time.Duration
}

// command starts one round, or ends the process if it names no strategy.
type command struct {
	Strategy   string
	Key        string
	Goroutines int           // callers in each process
	Load       time.Duration // of a query
	Start      time.Time     // when the callers of all processes start
	Every      time.Duration // the interval between samples; 0 means no samples
}

// sample is the state of a process in the middle of a round.
type sample struct {
	Waiting int64 `json:"waiting"` // callers without a value so far
	Loading int64 `json:"loading"` // queries under way
	Queries int64 `json:"queries"` // since the round began
}

type reply struct {
	Took    []time.Duration // from Start until a caller had a value
	Values  map[string]int  // how many got which
	Failed  int
	Error   string // the first
	Queries int64  // since the last reply

	Now *sample // if not nil, the reply is only a sample
}

// process returns the role of the processes of the fleet.
func process(backends map[string]Backend) fleet.Role {
	return func(c *fleet.Child) {
		var cfg config
		c.Receive(&cfg)
		w, err := newWorker(backends, cfg)
		if err != nil {
			c.Report(reply{Error: err.Error()})
			return
		}
		defer w.close()
		c.Report(reply{})

		ctx, cancel := context.WithCancel(context.Background())
		commands := make(chan command)
		go func() {
			defer cancel() // a round that is under way ends, and with it its locks
			defer close(commands)
			for {
				var next command
				if c.Receive(&next); next.Strategy == "" {
					return
				}
				commands <- next
			}
		}()
		for next := range commands {
			c.Report(w.round(ctx, next, func(now sample) { c.Report(reply{Now: &now}) }))
		}
	}
}

// worker is one process of the fleet.
type worker struct {
	config
	database *database
	loads    map[string]load // by strategy
	closers  []func(context.Context) error
	load     atomic.Int64 // time.Duration of a query
	queries  atomic.Int64
	loading  atomic.Int64
}

func newWorker(backends map[string]Backend, cfg config) (*worker, error) {
	backend, ok := of(backends, &cfg.Backend)
	if !ok {
		return nil, fmt.Errorf("unknown backend %q", cfg.Backend)
	}
	cache, locker, err := backend.Connect(cfg.Backend)
	if err != nil {
		return nil, err
	}
	db, err := openDatabase(cfg.Database)
	if err != nil {
		return nil, err
	}
	w := &worker{config: cfg, database: db, loads: map[string]load{}}
	s := service{cache: cache, locker: locker, query: w.query, atEnd: w.atEnd}
	for _, strategy := range strategies {
		w.loads[strategy.name] = strategy.build(s)
	}
	return w, nil
}

func (w *worker) atEnd(f func(context.Context) error) { w.closers = append(w.closers, f) }

func (w *worker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for _, f := range w.closers {
		if err := f(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stampede: child:", err)
		}
	}
	w.database.close()
}

// query is counted when it starts, so that one that is given up counts as well.
func (w *worker) query(ctx context.Context, key string) (string, error) {
	w.queries.Add(1)
	w.loading.Add(1)
	defer w.loading.Add(-1)
	return w.database.query(ctx, key, time.Duration(w.load.Load()))
}

// round starts all callers of this process at once and records what they got, and when.
func (w *worker) round(ctx context.Context, c command, send func(sample)) reply {
	ctx, cancel := context.WithDeadline(ctx, c.Start.Add(w.Timeout))
	defer cancel()
	w.load.Store(int64(c.Load))
	load := w.loads[c.Strategy]
	r := reply{Values: map[string]int{}}
	var mu sync.Mutex
	var callers sync.WaitGroup
	var waiting atomic.Int64
	start := make(chan struct{})
	for range c.Goroutines {
		callers.Go(func() {
			<-start
			v, err := load(ctx, c.Key)
			took := time.Since(c.Start)
			waiting.Add(-1)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if r.Failed++; r.Error == "" {
					r.Error = err.Error()
				}
				return
			}
			r.Took = append(r.Took, took)
			r.Values[v]++
		})
	}
	time.Sleep(time.Until(c.Start))
	waiting.Store(int64(c.Goroutines))
	close(start)
	stop := every(c.Every, func() {
		send(sample{Waiting: waiting.Load(), Loading: w.loading.Load(), Queries: w.queries.Load()})
	})
	callers.Wait()
	stop() // send may not be called after the reply
	r.Queries = w.queries.Swap(0)
	return r
}

// every calls f at once and then at each interval, unless interval is 0. stop ends the calls, and
// waits for the one that is running.
func every(interval time.Duration, f func()) (stop func()) {
	if interval == 0 {
		return func() {}
	}
	end := make(chan struct{})
	var calls sync.WaitGroup
	calls.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			f()
			select {
			case <-ticker.C:
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		calls.Wait()
	}
}
