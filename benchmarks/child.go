package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/golockers/locker/internal/fleet"
)

// The first message to a process is its job, which it answers with an empty reply when it is ready. Then it
// answers each order with a reply.

// workerRole is what all processes of a fleet do.
const workerRole = "worker"

// job is what a process does.
type job struct {
	Kind      string // a key of workers
	Redis     string
	Memcached string
	Postgres  string // a URL
	MariaDB   string // a DSN
	SQLite    string // a DSN
	Etcd      string
	Shared    string // the file of the shared memory
	Profile   string // a directory for profiles of the processor; empty for none
	Process   int    // the number of this one
	Who       string // the contender
	Key       string
	OwnKeys   bool // each goroutine has a lock of its own
	Count     int  // goroutines; of a holder of leases, leases

	RandomKeys int           // the number of locks to choose from in each cycle; 0 means one lock
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
	HandOff hist    // from a release until holding, of those that waited then
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
	"standing": newWaiting,
	"in turn":  newInTurn,
	"visits":   newVisitor,
}

// work is a process of a fleet.
func work(c *fleet.Child) {
	var j job
	c.Receive(&j)
	w, err := workers[j.Kind](j)
	if err != nil {
		c.Report(reply{Error: err.Error()})
		return
	}
	c.Report(reply{})
	for number := 0; ; number++ {
		var o order
		c.Receive(&o)
		stop, err := profile(j, number)
		if err != nil {
			fmt.Fprintln(os.Stderr, "benchmarks: child:", err)
			return
		}
		r := w.run(context.Background(), o)
		stop()
		c.Report(r)
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
