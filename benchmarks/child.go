package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// The parent and a process of its fleet talk JSON over the child's standard input and output: one job,
// answered by an empty reply when the process is ready, then a reply for each order. The end of the input
// ends the child, so none outlives its parent, however that ends.

// job is what a process is for.
type job struct {
	Kind      string // a key of workers
	Redis     string
	Memcached string
	Shared    string // the file of the shared memory
	Profile   string // a directory for profiles of the processor; empty for none
	Process   int    // the number of this one
	Who       string // the contender
	Key       string
	OwnKeys   bool // each goroutine has a lock of its own
	Count     int  // goroutines; of a holder of leases, leases

	Hold, Rest time.Duration // of a cycle
	Load       time.Duration // of the source
	TTL        time.Duration // of the lock of a load, or of leases; 0 is the contender's default
}

// order starts a run.
type order struct {
	Start  time.Time // all processes go at this moment
	For    time.Duration
	Round  int
	Fail   bool // the source fails
	Again  bool // callers call again until For has passed
	Finish bool
}

type reply struct {
	Error string // the first
	Fails int

	// of cycles
	Cycles  int64   // all of them
	Served  []int64 // by goroutine, within the time
	Waits   hist    // from asking until holding the lock
	HandOff hist    // from a release until holding, of those who waited then
	CPU     time.Duration

	// of a stampede
	Start   time.Time       // as in the order
	Took    []time.Duration // from Start until a caller had the value, or the error
	Wrong   int             // values that are not this round's
	Loads   int64
	LoadEnd time.Time // of the last

	// of a holder of leases
	Memory     int64 // bytes of heap and stacks
	Goroutines int
}

type worker interface {
	run(ctx context.Context, o order) reply
}

var workers = map[string]func(job) (worker, error){
	"cycles":   newCycler,
	"stampede": newLoading,
	"leases":   newHolder,
}

func childMain(stdin io.Reader, stdout io.Writer) int {
	// Ctrl-C reaches the whole process group. It is the parent who decides.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var j job
	if err := in.Decode(&j); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks: child:", err)
		return 1
	}
	w, err := workers[j.Kind](j)
	if err != nil {
		_ = out.Encode(reply{Error: err.Error()})
		return 1
	}
	if out.Encode(reply{}) != nil {
		return 1
	}
	orders := make(chan order)
	go func() {
		for {
			var o order
			if in.Decode(&o) != nil {
				os.Exit(1) // the parent is gone; what is held expires
			}
			orders <- o
		}
	}()
	for number := 0; ; number++ {
		o := <-orders
		stop, err := profile(j, number)
		if err != nil {
			fmt.Fprintln(os.Stderr, "benchmarks: child:", err)
			return 1
		}
		r := w.run(context.Background(), o)
		stop()
		if out.Encode(r) != nil {
			return 1
		}
	}
}

// profile begins a profile of the processor for an order, if that was asked for.
func profile(j job, number int) (stop func(), err error) {
	if j.Profile == "" {
		return func() {}, nil
	}
	name := fmt.Sprintf("%s-%s-%d-%d.prof", strings.ReplaceAll(j.Key, "/", "-"), j.Who, j.Process, number)
	file, err := os.Create(filepath.Join(j.Profile, name))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); file.Close() }, nil
}
