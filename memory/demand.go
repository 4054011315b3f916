package memory

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/demand"
)

// patience is how long an attempt waits for an answer. The owner is in this process, so it always
// answers, and at once unless the machine is overloaded.
const patience = 10 * time.Second

// maxAsked limits how often an attempt asks for a lock if another token takes the lock each time
// after it was given up.
const maxAsked = 3

// owners holds the users of a Locker that keep locks for their next callers. The zero value is
// empty.
type owners struct {
	mu     sync.Mutex
	byMark map[string]demand.Owner
}

// owner is one of them.
type owner struct {
	owners *owners
	mark   string
	closed atomic.Bool
}

// Listen is for package cohort. It notifies o when another token wants a lock that is held by a
// token with o's mark.
func (l *Locker) Listen(o demand.Owner) demand.Listener {
	if l == nil {
		return nil
	}
	w := &owner{owners: &l.owners, mark: rand.Text()}
	w.owners.mu.Lock()
	defer w.owners.mu.Unlock()
	if w.owners.byMark == nil {
		w.owners.byMark = make(map[string]demand.Owner)
	}
	w.owners.byMark[w.mark] = o
	return w
}

func (w *owner) Mark(string) string { return w.mark }

func (w *owner) Live() bool { return !w.closed.Load() }

func (w *owner) Close() {
	w.closed.Store(true)
	w.owners.mu.Lock()
	defer w.owners.mu.Unlock()
	delete(w.owners.byMark, w.mark)
}

func (os *owners) of(mark string) demand.Owner {
	os.mu.Lock()
	defer os.mu.Unlock()
	return os.byMark[mark]
}

// tell notifies the owner of holder, if it has one, that the lock is wanted. It does so in the
// background, since the caller may hold a mutex that the owner needs.
func (os *owners) tell(key, holder string) {
	mark := demand.Mark(holder)
	if mark == "" {
		return
	}
	if o := os.of(mark); o != nil {
		go o.Wanted(key, nil)
	}
}

// ask asks the owner of holder, if it has one, to give the lock up. It reports whether the owner
// has done so.
func (os *owners) ask(ctx context.Context, key, holder string) (free bool, err error) {
	mark := demand.Mark(holder)
	if mark == "" {
		return false, nil
	}
	o := os.of(mark)
	if o == nil {
		return false, nil
	}
	answer := make(chan bool, 1)
	o.Wanted(key, func(isFree bool) { answer <- isFree })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case free = <-answer:
	case <-timer.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return free, nil
}
