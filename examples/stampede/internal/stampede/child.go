package stampede

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The parent and a process of its fleet talk JSON over the child's standard input and output: one
// config, answered by an empty reply, then for each command a reply, and before it samples if the
// command asks for them. The child ends at the end of its input, so it does not outlive its parent.

type config struct {
	Backend  Address
	Database string // its file
	Key      string
	Timeout  time.Duration
}

// command starts one round.
type command struct {
	Strategy   string
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

func childMain(backends map[string]Backend, stdin io.Reader, stdout io.Writer) int {
	// Ctrl-C reaches the whole process group. It is for the parent to decide.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var cfg config
	if err := in.Decode(&cfg); err != nil {
		if err == io.EOF { // the parent has ended before it had a job for this one
			return 0
		}
		fmt.Fprintln(os.Stderr, "stampede: child:", err)
		return 1
	}
	w, err := newWorker(backends, cfg)
	if err != nil {
		_ = out.Encode(reply{Error: err.Error()})
		return 1
	}
	defer w.close()
	if out.Encode(reply{}) != nil {
		return 1
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	commands := make(chan command)
	go func() {
		for {
			var c command
			if in.Decode(&c) != nil {
				break
			}
			commands <- c
		}
		close(commands)
		cancel() // a round that is under way ends, and with it its locks
		time.Sleep(Patience)
		os.Exit(1)
	}()
	for c := range commands {
		send := func(now sample) { _ = out.Encode(reply{Now: &now}) } // if the parent is gone, the reply shows it
		if out.Encode(w.round(ctx, c, send)) != nil {
			return 1
		}
	}
	return 0
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
	s := service{key: cfg.Key, cache: cache, locker: locker, query: w.query, atEnd: w.atEnd}
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
			v, err := load(ctx)
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
