//go:build linux

package leases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/belief"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	processes = 3
	patience  = 2 * time.Minute // for what has to happen on any machine
)

// proveFor is how long the processes of each backend run: LOCKER_PROVE, or 3 seconds.
func proveFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("LOCKER_PROVE")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// Processes that are killed, stopped and cut off never believe at the same time that they hold a
// lock. All that live are served again afterwards, and nothing is left on the server.
func TestLeases(t *testing.T) {
	for name := range backends {
		for over, w := range wraps {
			title := name + over
			t.Run(title, func(t *testing.T) {
				if os.Getenv("LOCKER_PROVE") == "" && over != short[name] {
					t.Skip("only in make prove")
				}
				if title != "redisv9" {
					testserver.Variant(t, proof.ShortForm)
				}
				t.Parallel()
				r := start(t, task{Role: "holder", Backend: name, Wrap: over})
				r.disturb(proveFor(t))
				happens := func(word int, what string) {
					require.Eventually(t, func() bool { return r.ledger.Word(word).Load() > 0 }, patience, time.Millisecond,
						"%s never happens", what)
				}
				happens(severalDone, "DoAll")
				if !w.local {
					happens(resumed, "taking over a lease")
				}
				r.finish()
				r.isClean()
				assert.Empty(t, r.overlaps())
				assert.Zero(t, r.ledger.Word(withoutLock).Load(), "functions of DoAll without one of the locks")
				assert.NotZero(t, r.kills.Load()+r.stops.Load()+r.cuts.Load()+r.hangs.Load()+r.lost.Load()+r.late.Load(), "faults")
				r.record(title)
			})
		}
	}
}

// short is what the backends run in without LOCKER_PROVE: if nothing else, their own Lockers.
var short = map[string]string{"rueidis": "+cohort", "redigo": "+semaphore"}

// The same run finds a Locker that lies.
func TestLiars(t *testing.T) {
	const twice = "answers true twice"
	found := map[string]task{
		twice + ", DoAll":     {Lie: twice, OnlyDoAll: true},
		twice + ", semaphore": {Lie: twice, Wrap: "+semaphore"},
		doesOne:               {Lie: doesOne, OnlyDoAll: true},
	}
	for lie := range lies {
		found[lie] = task{Lie: lie}
	}
	for name, task := range found {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			task.Role, task.Backend = "holder", "redisv9"
			r := start(t, task)
			end := time.Now().Add(patience)
			for len(r.overlaps()) == 0 && r.ledger.Word(withoutLock).Load() == 0 {
				require.Less(t, time.Now(), end, "nothing was found")
				r.disturb(time.Second)
			}
		})
	}
}

// overlaps returns the beliefs that contradict each other: more than may hold a lock at a time.
func (r *run) overlaps() (all []string) {
	beliefs, holders := r.ledger.Beliefs(), wraps[r.task.Wrap].holders
	if holders > 1 {
		if most, last := belief.Most(beliefs); most > holders {
			all = append(all, fmt.Sprintf("%d holders: %v", most, last))
		}
		return all
	}
	for _, o := range belief.Overlaps(beliefs) {
		all = append(all, o.String())
	}
	return all
}

// run is a fleet of processes on one server, each with a proxy of its own.
type run struct {
	t       *testing.T
	task    task
	addr    string
	ledger  *belief.Ledger
	proxies []*faultproxy.Proxy
	fleets  []fleet.Fleet // of one process each

	kills, stops, cuts, hangs, late, lost atomic.Int64
}

func start(t *testing.T, task task) *run {
	t.Helper()
	r := &run{t: t, task: task, addr: backends[task.Backend].server(t)}
	r.begin()
	return r
}

// begin starts the processes.
func (r *run) begin() {
	r.t.Helper()
	// A belief takes a few milliseconds of a worker at least.
	beliefs := 100_000 + int(proveFor(r.t)/time.Millisecond)*processes*workers
	r.task.Ledger = filepath.Join(r.t.TempDir(), "ledger")
	require.NoError(r.t, belief.Create(r.task.Ledger, allWords, beliefs))
	ledger, err := belief.Open(r.task.Ledger, allWords)
	require.NoError(r.t, err)
	r.ledger = ledger
	r.t.Cleanup(func() { assert.NoError(r.t, ledger.Close()) })
	for slot := range processes {
		r.proxies = append(r.proxies, faultproxy.New(r.t, r.addr))
		r.fleets = append(r.fleets, nil)
		require.NoError(r.t, r.spawn(slot))
	}
	r.t.Cleanup(func() {
		for _, f := range r.fleets {
			f.Kill()
		}
	})
}

// spawn starts a process.
func (r *run) spawn(slot int) error {
	f, err := fleet.Start(r.task.Role, 1)
	if err != nil {
		return err
	}
	r.fleets[slot] = f
	task := r.task
	task.Addr, task.Slot = r.proxies[slot].Addr, slot
	return f.Send(task)
}

// disturb kills, stops and cuts off processes for d. After that all of them run and have links.
func (r *run) disturb(d time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	pause := 500 * time.Millisecond // the longest between two faults of a process
	if r.task.Calm {
		pause *= 3
	}
	var all sync.WaitGroup
	for slot := range processes {
		all.Go(func() {
			for rest(ctx, 0, pause); ctx.Err() == nil; rest(ctx, 0, pause) {
				if err := r.fault(ctx, slot); err != nil {
					assert.NoError(r.t, err)
					return
				}
				r.proxies[slot].Heal(r.t)
			}
		})
	}
	all.Wait()
}

// fault is one thing that happens to a process or its link.
func (r *run) fault(ctx context.Context, slot int) error {
	p, ttl := r.proxies[slot], backends[r.task.Backend].ttl
	signal := func(s os.Signal) error { return r.fleets[slot][0].Signal(s) }
	kind := rand.N(7)
	if r.task.Calm {
		kind = 0
	}
	switch kind {
	case 0, 5:
		r.fleets[slot].Kill()
		r.kills.Add(1)
		return r.spawn(slot)
	case 1:
		if err := signal(syscall.SIGSTOP); err != nil {
			return err
		}
		rest(context.WithoutCancel(ctx), ttl+ttl/4, 2*ttl)
		r.stops.Add(1)
		return signal(syscall.SIGCONT)
	case 2:
		p.Cut()
		r.cuts.Add(1)
	case 3:
		p.Hang()
		rest(ctx, 0, ttl)
		r.hangs.Add(1)
	case 4:
		kinds := []faultproxy.Kind{faultproxy.DropReply, faultproxy.HalfReply, faultproxy.ResetRequest}
		if acted(ctx, p.Arm(kinds[rand.N(len(kinds))], 1+rand.N(10))) {
			r.lost.Add(1)
		}
	default:
		fault := p.Arm(faultproxy.HoldRequest, 1+rand.N(10))
		if acted(ctx, fault) {
			rest(context.WithoutCancel(ctx), 2*ttl, 2*ttl+ttl/4)
			r.late.Add(1)
		}
		fault.Release()
	}
	return nil
}

// acted reports whether a fault acts within a second or so.
func acted(ctx context.Context, f *faultproxy.Fault) bool {
	select {
	case <-f.Hit:
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	return f.Acted()
}

// rest waits for a random time between least and most.
func rest(ctx context.Context, least, most time.Duration) {
	select {
	case <-time.After(least + rand.N(most-least)):
	case <-ctx.Done():
	}
}

// finish waits until each worker has been served once more, and ends the processes.
func (r *run) finish() {
	r.t.Helper()
	before := make([]uint64, processes*workers)
	for i := range before {
		before[i] = r.ledger.Word(served + i).Load()
	}
	for i, n := range before {
		require.Eventually(r.t, func() bool { return r.ledger.Word(served+i).Load() > n }, patience, time.Millisecond,
			"worker %d is not served again", i)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for _, f := range r.fleets {
		require.NoError(r.t, f.Send(true))
	}
	for _, f := range r.fleets {
		var ended bool
		require.NoError(r.t, f[0].Receive(ctx, &ended))
	}
}

// isClean checks that all that is left on the server ends by itself, and soon.
func (r *run) isClean() {
	r.t.Helper()
	b := backends[r.task.Backend]
	var l locker.Locker
	require.Eventually(r.t, func() (ok bool) { // some connect at once, which takes long on a busy machine
		var err error
		l, err = b.open(r.addr)
		return err == nil
	}, patience, 20*time.Millisecond)
	require.EventuallyWithT(r.t, func(t *assert.CollectT) {
		isClean(t, l)
		if b.left != nil {
			b.left(t, r.addr)
		}
	}, patience, 100*time.Millisecond)
}

func (r *run) record(name string) {
	r.t.Helper()
	beliefs := r.ledger.Beliefs()
	most, _ := belief.Most(beliefs)
	holders := wraps[r.task.Wrap].holders
	// Or the test shows nothing. A few seconds may be too short.
	if holders > 1 && os.Getenv("LOCKER_PROVE") != "" {
		assert.Equal(r.t, holders, most, "holders of a lock at the same time")
	}
	proof.Record(r.t, "Leases", name,
		proof.Of("killed", r.kills.Load()), proof.Of("stopped", r.stops.Load()),
		proof.Of("links cut", r.cuts.Load()), proof.Of("hung", r.hangs.Load()),
		proof.Of("replies or requests lost", r.lost.Load()), proof.Of("requests two ttls late", r.late.Load()),
		proof.Of("errors", r.ledger.Word(failures).Load()), proof.Of("taken over", r.ledger.Word(resumed).Load()),
		proof.Of("DoAll", r.ledger.Word(severalDone).Load()),
		proof.Of("beliefs", len(beliefs)), proof.Of("overlaps", len(r.overlaps())),
		proof.Of("holders at a time", fmt.Sprintf("%d of %d", most, holders)),
		proof.Of("longest wait", fmt.Sprintf("%.1f s", time.Duration(r.ledger.Word(longestWait).Load()).Seconds())))
}
