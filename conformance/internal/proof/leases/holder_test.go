//go:build linux

package leases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof/belief"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
)

const (
	keys    = 8
	workers = 3 // of each process
)

// The words of a ledger.
const (
	longestWait = iota // in nanoseconds, of a Lock that got its lock
	failures           // operations that ended with another error than ErrHeld and ErrNotHeld
	resumed            // leases that another goroutine or process has taken over
	keptAfter          // locks that were kept for a minimum time
	severalDone        // calls of DoAll that ran their function
	withoutLock        // those that had not taken one of the locks
	mailbox            // the locks that were detached
	mailboxes   = 16
	served      = mailbox + mailboxes // by process and worker
	slots       = 8
	words       = served + slots*workers
)

// task is the first order to a process. The next one, a bool, ends it.
type task struct {
	Backend, Addr, Ledger string
	Slot                  int
	Wrap                  string // a key of wraps
	Lie                   string // a key of lies, or empty
	Role                  string // "holder" or "loader"
	Calm                  bool   // processes are killed, and nothing else happens to them
	OnlyDoAll             bool   // holders take locks in no other way
}

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // it logs connections that end
	fleet.Main(map[string]fleet.Role{"holder": holder, "loader": loader})
	// The Lockers that processes open end with them, and this one opens some in the same way.
	leaktest.Main(m, "google.golang.org/grpc", "github.com/jackc/pgx/v5/pgxpool.", "database/sql.",
		"github.com/go-sql-driver/mysql.")
}

// holder is a process in which workers take locks until it is told to end.
func holder(c *fleet.Child) {
	var t task
	c.Receive(&t)
	l, ledger := t.open()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		var end bool
		c.Receive(&end)
		cancel()
	}()
	var all sync.WaitGroup
	for i := range workers {
		w := worker{
			l: l, ledger: ledger, ttl: backends[t.Backend].ttl, id: t.Slot*workers + i,
			local: wraps[t.Wrap].local, keys: wraps[t.Wrap].keys, onlyDoAll: t.OnlyDoAll, doAll: locker.DoAll,
		}
		if t.Lie == doesOne {
			w.doAll = doOne
		}
		all.Go(func() {
			for ctx.Err() == nil {
				w.turn()
			}
		})
	}
	all.Wait()
	c.Report(true)
}

// open returns what the process works with. It ends the process if there is an error.
func (t task) open() (locker.Locker, *belief.Ledger) {
	ledger, err := belief.Open(t.Ledger, allWords)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leases:", err)
		os.Exit(1)
	}
	l, err := backends[t.Backend].open(t.Addr)
	for err != nil { // the link may be cut at the moment
		time.Sleep(20 * time.Millisecond)
		l, err = backends[t.Backend].open(t.Addr)
	}
	if lie := lies[t.Lie]; lie != nil {
		l = lie(l)
	}
	return wraps[t.Wrap].make(l), ledger
}

// worker takes locks, one after the other.
type worker struct {
	l      locker.Locker
	ledger *belief.Ledger
	ttl    time.Duration
	local  bool // other processes cannot resume its leases
	keys   int  // how many keys there are
	id     int

	onlyDoAll bool
	doAll     func(ctx context.Context, l locker.Locker, keys []string, ttl time.Duration,
		fn func(context.Context) error, opts ...locker.Option) error
}

// claim is a lease, and what was recorded of it.
type claim struct {
	*locker.Lease
	belief.Belief
}

func (w worker) claims(lease *locker.Lease) claim {
	return claim{lease, w.believes(lease.Key(), belief.At(lease.Deadline()))}
}

// believes records that the worker has a lock from now on.
func (w worker) believes(name string, until time.Duration) belief.Belief {
	key, err := strconv.Atoi(name[len(keyName(0))-1:])
	if err != nil {
		panic(err)
	}
	w.ledger.Word(served + w.id).Add(1)
	return w.ledger.Add(belief.Interval{Key: uint32(key), Holder: uint32(w.id), From: belief.Clock(), Until: until})
}

// ends records that the belief ends now, unless it has ended already. It is called before what ends
// the lease.
func (c claim) ends() { c.Until(min(belief.Clock(), belief.At(c.Deadline()))) }

func (c claim) unlock() error {
	c.ends()
	return c.Lease.Unlock(context.Background())
}

// turn takes a lock in a random way and gives it up.
func (w worker) turn() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if w.onlyDoAll {
		w.note(w.doSeveral(ctx))
		return
	}
	if rand.N(2) == 0 {
		w.note(w.resume(ctx))
	}
	key := keyName(rand.N(w.keys))
	switch rand.N(20) {
	case 0, 1:
		w.note(w.try(ctx, key))
	case 2, 3:
		w.note(w.takeSeveral(ctx))
	case 4, 5:
		w.note(w.takeForMinimum(ctx, key))
	case 6:
		w.note(w.leave(ctx, key))
	case 7, 8:
		w.note(w.doSeveral(ctx))
	default:
		w.note(w.take(ctx, key))
	}
}

// note counts an error of unknown outcome.
func (w worker) note(err error) {
	if err != nil && !errors.Is(err, locker.ErrHeld) && !errors.Is(err, locker.ErrNotHeld) {
		w.ledger.Word(failures).Add(1)
		time.Sleep(rand.N(20 * time.Millisecond))
	}
}

// lock is locker.Lock, and notes how long it took.
func (w worker) lock(ctx context.Context, key string, opts ...locker.Option) (*locker.Lease, error) {
	began := time.Now()
	lease, err := locker.Lock(ctx, w.l, key, w.ttl, opts...)
	if err == nil {
		raise(w.ledger.Word(longestWait), time.Since(began))
	}
	return lease, err
}

// raise makes a word at least d.
func raise(word *atomic.Uint64, d time.Duration) {
	for {
		old := word.Load()
		if time.Duration(old) >= d || word.CompareAndSwap(old, uint64(d)) {
			return
		}
	}
}

func (w worker) try(ctx context.Context, key string) error {
	lease, err := locker.TryLock(ctx, w.l, key, w.ttl)
	if err != nil {
		time.Sleep(rand.N(2 * time.Millisecond))
		return err
	}
	return w.claims(lease).unlock()
}

// take holds a lock for a moment, sometimes with an extension, and sometimes for longer than its ttl.
func (w worker) take(ctx context.Context, key string) error {
	long := rand.N(50) == 0
	var opts []locker.Option
	if long || rand.N(2) == 0 {
		opts = append(opts, locker.WithKeepAlive())
	}
	lease, err := w.lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	c := w.claims(lease)
	switch {
	case long:
		for end := time.Now().Add(w.ttl * 3 / 2); time.Now().Before(end) && lease.Err() == nil; time.Sleep(time.Millisecond) {
			c.Until(belief.At(lease.Deadline()))
		}
	case rand.N(4) == 0:
		w.extend(ctx, c)
	default:
		time.Sleep(rand.N(3 * time.Millisecond))
	}
	return c.unlock()
}

// extend extends by another ttl. While that is under way the lease counts on the nearer deadline.
func (w worker) extend(ctx context.Context, c claim) {
	ttl := w.ttl/2 + rand.N(w.ttl)
	c.Until(min(belief.At(c.Deadline()), belief.Clock()+ttl))
	if err := c.Extend(ctx, ttl); !errors.Is(err, locker.ErrNotHeld) {
		c.Until(belief.At(c.Deadline()))
	}
}

// two returns the names of two locks.
func (w worker) two() []string {
	first := rand.N(w.keys)
	return []string{keyName(first), keyName((first + 1) % w.keys)}
}

// takeSeveral holds two locks at once.
func (w worker) takeSeveral(ctx context.Context) error {
	leases, err := locker.LockAll(ctx, w.l, w.two(), w.ttl)
	if err != nil {
		return err
	}
	var claims []claim
	for _, lease := range leases {
		claims = append(claims, w.claims(lease))
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	var errs []error
	for _, c := range slices.Backward(claims) {
		errs = append(errs, c.unlock())
	}
	return errors.Join(errs...)
}

// doSeveral runs a function under two locks, which does not know their deadlines.
func (w worker) doSeveral(ctx context.Context) error {
	names := w.two()
	l, recorded := record(w.l)
	long := rand.N(20) == 0
	return w.doAll(ctx, l, names, w.ttl, func(ctx context.Context) error {
		w.ledger.Word(severalDone).Add(1)
		beliefs := make(map[string]belief.Belief)
		for _, name := range names {
			until, ok := recorded.until(name)
			if !ok {
				w.ledger.Word(withoutLock).Add(1)
				return nil
			}
			beliefs[name] = w.believes(name, until)
		}
		time.Sleep(rand.N(3 * time.Millisecond))
		for end := time.Now().Add(w.ttl * 3 / 2); long && ctx.Err() == nil && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
			for name, b := range beliefs {
				until, _ := recorded.until(name)
				b.Until(until)
			}
		}
		for name, b := range beliefs {
			until, _ := recorded.until(name)
			b.Until(min(belief.Clock(), until))
		}
		return nil
	})
}

// takeForMinimum leaves a lock that no other may have until its minimum time has passed.
func (w worker) takeForMinimum(ctx context.Context, key string) error {
	least := rand.N(w.ttl / 4)
	lease, err := w.lock(ctx, key, locker.WithMinHold(least))
	if err != nil {
		return err
	}
	c := w.claims(lease)
	// The minimum counts from when the lock was acquired, which was not before the lease's ttl began.
	c.Until(belief.At(lease.Deadline()) - w.ttl + least)
	if err := lease.Unlock(context.Background()); err != nil {
		return err
	}
	w.ledger.Word(keptAfter).Add(1)
	return nil
}

// leave detaches a lock and leaves it to whichever worker finds it in the mailbox.
func (w worker) leave(ctx context.Context, key string) error {
	if w.local {
		return w.take(ctx, key)
	}
	n, _ := strconv.Atoi(key[len(keyName(0))-1:])
	message := uint64(n+1)<<56 | rand.Uint64()>>8
	lease, err := w.lock(ctx, key, locker.WithToken(token(message)), locker.WithKeepAlive())
	if err != nil {
		return err
	}
	c := w.claims(lease)
	c.ends()
	lease.Detach()
	if !w.ledger.Word(mailbox+rand.N(mailboxes)).CompareAndSwap(0, message) {
		_, err = w.l.Release(ctx, key, token(message)) // the mailbox is full
	}
	return err
}

// resume takes over a lock from the mailbox, if it finds one.
func (w worker) resume(ctx context.Context) error {
	for n := range mailboxes {
		message := w.ledger.Word(mailbox + n).Swap(0)
		if message == 0 {
			continue
		}
		lease, err := locker.Resume(ctx, w.l, keyName(int(message>>56)-1), token(message), w.ttl)
		if err != nil {
			return err
		}
		w.ledger.Word(resumed).Add(1)
		c := w.claims(lease)
		time.Sleep(rand.N(3 * time.Millisecond))
		return c.unlock()
	}
	return nil
}

func token(message uint64) string { return fmt.Sprintf("left/%x", message) }
