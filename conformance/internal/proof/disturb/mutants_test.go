package disturb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The names of Lockers that are wrong only while, or after, something is wrong with their server.
const (
	errorIsSuccess   = "takes an error for a success"
	slowIsSuccess    = "takes a late answer for a success"
	losesSlow        = "never returns after a late answer"
	storedOnce       = "needs what it stored when it began"
	countsFences     = "counts fencing numbers from 1"
	runsByHash       = "runs scripts by hash only"
	hearsOnce        = "subscribes only once, and does not poll"
	countsReceivers  = "hands over to any receiver of a message"
	keepsNode        = "keeps the node that had the slot"
	keepsNodeAndErrs = "keeps the node that had the slot, and takes an error for a success"
	connectsEachTime = "connects for each request, and takes an error for a success"
	remembersRow     = "remembers where its row is"
	locksSession     = "locks by session behind a pooler"
	readsOldRevision = "reads the revision of when it began"
)

// mutant makes a broken Locker from a correct one, or from nothing but the address.
type mutant struct {
	of func(open load.Open) load.Open
	// unsteady means that a slow machine, or the pooler, is enough to make it go wrong.
	unsteady bool
}

var mutants = map[string]mutant{
	errorIsSuccess: {of: beliefInErrors},
	slowIsSuccess: {unsteady: true, of: altered(func(_ testing.TB, l locker.Locker, m *mutated) {
		m.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			began := time.Now()
			ok, err := l.Acquire(ctx, key, token, ttl)
			return ok || err == nil && time.Since(began) > late, err
		}
	})},
	losesSlow: {unsteady: true, of: altered(func(tb testing.TB, l locker.Locker, m *mutated) {
		m.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			began := time.Now()
			ok, err := l.Acquire(ctx, key, token, ttl)
			if time.Since(began) > late {
				<-tb.Context().Done()
			}
			return ok, err
		}
	})},
	storedOnce:       {of: altered(needStored)},
	countsFences:     {of: countFences},
	runsByHash:       {of: fromAddr(runByHash)},
	hearsOnce:        {of: hearOnce},
	countsReceivers:  {of: fromAddr(countReceivers)},
	keepsNode:        {of: keepNode},
	keepsNodeAndErrs: {of: func(open load.Open) load.Open { return beliefInErrors(keepNode(open)) }},
	connectsEachTime: {of: connectEachTime, unsteady: true},
	remembersRow:     {of: rememberRow},
	locksSession:     {of: fromAddr(lockSession), unsteady: true},
	readsOldRevision: {of: readOldRevision},
}

// late is how long an answer takes that does not come in time.
const late = 100 * time.Millisecond

// impatient are the limits for mutants, which go on while they are wrong.
var impatient = limits{returns: time.Minute, stops: 1500 * time.Millisecond, serves: 1500 * time.Millisecond}

// The checks find each mutant in each of the disturbances that show it.
func TestMutants(t *testing.T) {
	long := os.Getenv("LOCKER_PROVE") != ""
	type counts struct{ tried, found atomic.Int64 }
	all := make(map[string]*counts)
	t.Run("all", func(t *testing.T) {
		for _, b := range backends {
			if b.variant && !testserver.All() {
				continue
			}
			for _, what := range slices.Sorted(maps.Keys(b.disturbances)) {
				d := b.disturbances[what]
				assert.NotEmpty(t, d.finds, "no mutant shows that %s can find anything", what)
				for _, name := range d.finds {
					if !long && (all[name] != nil || d.slow || b.slow) {
						continue
					}
					if all[name] == nil {
						all[name] = new(counts)
					}
					t.Run(what+": "+name, func(t *testing.T) {
						t.Parallel()
						all[name].tried.Add(1)
						b.find(t, d, name)
						all[name].found.Add(1)
					})
				}
			}
		}
	})
	if t.Failed() {
		return
	}
	for name, n := range all {
		if n.tried.Load() > 0 {
			proof.Record(t, "Mutants", name, proof.Of("disturbances that must find it", n.tried.Load()),
				proof.Of("found it", n.found.Load()))
		}
	}
}

// find disturbs a server until the checks find that a mutant is wrong.
func (b backend) find(t *testing.T, d disturbance, name string) {
	t.Helper()
	adapters := map[string][]load.Open{name: {mutants[name].of(b.base)}}
	for end := time.Now().Add(2 * time.Minute); ; {
		_, all := b.run(t, b.start(t, d.args), d, adapters, impatient, 0)
		if _, problems := all[0].judge(d, impatient); len(problems) > 0 {
			t.Log(problems[0])
			return
		}
		require.Less(t, time.Now(), end, "it was not found")
	}
}

// Without a disturbance, the mutants are not wrong.
func TestMutantsAreFineOtherwise(t *testing.T) {
	if os.Getenv("LOCKER_PROVE") == "" {
		t.Skip("only in make prove")
	}
	calm := disturbance{do: func(*env) { time.Sleep(300 * time.Millisecond) }}
	for _, b := range backends {
		tried := make(map[string]bool)
		for _, what := range slices.Sorted(maps.Keys(b.disturbances)) {
			for _, name := range b.disturbances[what].finds {
				if tried[name] || mutants[name].unsteady {
					continue
				}
				tried[name] = true
				t.Run(what+": "+name, func(t *testing.T) {
					t.Parallel()
					adapters := map[string][]load.Open{name: {mutants[name].of(b.base)}}
					_, all := b.run(t, b.start(t, b.disturbances[what].args), calm, adapters, usual, 0)
					_, problems := all[0].judge(calm, usual)
					assert.Empty(t, problems, "%v", all[0].report.Messages)
				})
			}
		}
	}
}

// mutated is a Locker without any optional interface.
type mutated struct {
	locker.Locker
	acquire func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	release func(ctx context.Context, key, token string) (bool, error)
}

func (m *mutated) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return m.acquire(ctx, key, token, ttl)
}

func (m *mutated) Release(ctx context.Context, key, token string) (bool, error) {
	return m.release(ctx, key, token)
}

func mutate(l locker.Locker) *mutated { return &mutated{l, l.Acquire, l.Release} }

// altered makes a mutant that differs from a correct Locker in its methods.
func altered(change func(tb testing.TB, l locker.Locker, m *mutated)) func(open load.Open) load.Open {
	return func(open load.Open) load.Open {
		return func(tb testing.TB, addr string) locker.Locker {
			l := open(tb, addr)
			m := mutate(l)
			change(tb, l, m)
			return m
		}
	}
}

// fromAddr makes a mutant that is not made from a correct Locker, but from the server's address.
func fromAddr(open load.Open) func(load.Open) load.Open {
	return func(load.Open) load.Open { return open }
}

var beliefInErrors = altered(func(_ testing.TB, l locker.Locker, m *mutated) { m.acquire = believing(l.Acquire) })

type acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)

// believing takes an error for a success, unless the caller has left.
func believing(do acquire) acquire {
	return func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := do(ctx, key, token, ttl)
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			return true, nil
		}
		return ok, err
	}
}

// needStored stores a few things, and refuses to work if one of them is missing. Nothing refreshes
// them: a server that has to make room must choose among them and other keys.
func needStored(tb testing.TB, l locker.Locker, m *mutated) {
	const many, lasts = 100, 40 * time.Second
	const token = "stored"
	name := func(i int) string { return fmt.Sprintf("stored by %p/%d", m, i) }
	for i := range many {
		prepare(tb, func() error {
			ok, err := l.Acquire(tb.Context(), name(i), token, lasts)
			if err == nil && !ok {
				err = locker.ErrHeld
			}
			return err
		})
	}
	var next atomic.Int64
	var missing atomic.Bool
	m.acquire = func(ctx context.Context, key, t string, ttl time.Duration) (bool, error) {
		ok, err := l.Extend(ctx, name(int(next.Add(1))%many), token, lasts)
		if err != nil {
			return false, err
		}
		if !ok {
			missing.Store(true)
		}
		if missing.Load() {
			return false, errors.New("something is missing")
		}
		return l.Acquire(ctx, key, t, ttl)
	}
}
