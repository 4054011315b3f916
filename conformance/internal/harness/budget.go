package harness

import (
	"runtime"
	"sync"
	"time"
)

// All runs of the suite in a process share the machine by a budget: so many checks and so many
// requests at the same time. Most checks mostly wait, so there are many to a core. Without a budget
// it would be luck whether a call of one check finds a connection and a processor before a lock of
// another expires.

const (
	checksPerCore   = 20
	requestsPerCore = 4
	// yields is how long a request counts. One that takes longer waits for something, such as a
	// broken Locker for a lock, and must not keep the others from what it waits for.
	yields = 100 * time.Millisecond
)

// Budget bounds what runs at the same time.
type Budget struct{ checks, requests room }

// NewBudget returns a budget for a machine with that many cores.
func NewBudget(cores int) *Budget {
	return &Budget{checks: room{size: cores * checksPerCore}, requests: room{size: cores * requestsPerCore}}
}

// ofProcess is the budget of all suites that have no other.
var ofProcess = NewBudget(runtime.GOMAXPROCS(0))

// request makes a request when there is room for it.
func (b *Budget) request(do func()) {
	b.requests.take(1)
	leave := sync.OnceFunc(func() { b.requests.give(1) })
	defer leave()
	defer time.AfterFunc(yields, leave).Stop()
	do()
}

// room has places, which are taken in the order in which they were asked for.
type room struct {
	size int

	mu    sync.Mutex
	taken int
	queue []*claim
}

type claim struct {
	n       int
	granted chan struct{}
}

// take takes n places, or all if n is more than that.
func (r *room) take(n int) {
	c := &claim{min(n, r.size), make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, c)
	r.grantLocked()
	r.mu.Unlock()
	<-c.granted
}

// give gives back what was taken with the same n.
func (r *room) give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= min(n, r.size)
	r.grantLocked()
}

func (r *room) grantLocked() {
	for len(r.queue) > 0 && r.taken+r.queue[0].n <= r.size {
		r.taken += r.queue[0].n
		close(r.queue[0].granted)
		r.queue = r.queue[1:]
	}
}
