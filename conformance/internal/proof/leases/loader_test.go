//go:build linux

package leases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/belief"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
)

// The source of the loads is in the ledger, after the words of all runs.
const (
	versions = words           // what the source returns, by key
	updated  = versions + keys // what no Load that begins now may be older than
	loads    = updated + keys
	unlocked = loads + 1 // loads without the lock
	gets     = unlocked + 1
	updates  = gets + 1
	old      = updates + 1 // values that were older than an Update that had returned
	allWords = old + 1
)

// lockTTL is short, so that no process gives up waiting for the lock of one that was killed.
const lockTTL = 500 * time.Millisecond

// stubborn is a Cache that forgets to delete.
type stubborn struct{ *redisv9.Cache[uint64] }

func (stubborn) Delete(context.Context, string) error { return nil }

// loader is a process that loads values and updates them.
func loader(c *fleet.Child) {
	var t task
	c.Receive(&t)
	l, ledger := t.open()
	values := redisv9.NewCache(redisClient(t.Addr), redisv9.CacheConfig[uint64]{TTL: 50 * time.Millisecond})
	var cache singleflight.Cache[uint64] = values
	if t.Lie == "deletes nothing" {
		values = redisv9.NewCache(redisClient(t.Addr), redisv9.CacheConfig[uint64]{TTL: time.Minute})
		cache = stubborn{values}
	}
	number := func(key string) (n int) {
		_, _ = fmt.Sscan(key, &n)
		return n
	}
	l, held := record(l)
	// within records that this process has the lock of key while do runs.
	within := func(key string, do func()) {
		until, ok := held.until(key)
		if !ok {
			ledger.Word(unlocked).Add(1)
			do()
			return
		}
		b := ledger.Add(belief.Interval{Key: uint32(number(key)), Holder: uint32(t.Slot), From: belief.Clock(), Until: until})
		do()
		b.Until(min(belief.Clock(), until))
	}
	users := singleflight.NewLoader(l, cache, func(_ context.Context, key string) (v uint64, err error) {
		ledger.Word(loads).Add(1)
		within(key, func() {
			v = ledger.Word(versions + number(key)).Load()
			time.Sleep(rand.N(5 * time.Millisecond))
		})
		return v, nil
	}, singleflight.WithLockTTL(lockTTL), singleflight.WithMaxWait(time.Minute),
		singleflight.WithBackendTimeout(10*time.Second))

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		var end bool
		c.Receive(&end)
		cancel()
	}()
	var all sync.WaitGroup
	every := func(pause time.Duration, do func(n int, key string)) {
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(rand.N(pause)) {
				n := rand.N(keys)
				do(n, fmt.Sprint(n))
			}
		})
	}
	every(time.Millisecond, func(n int, key string) {
		least := ledger.Word(updated + n).Load()
		v, err := users.Load(context.Background(), key)
		if err != nil {
			ledger.Word(failures).Add(1)
			return
		}
		ledger.Word(gets).Add(1)
		ledger.Word(served + t.Slot*workers).Add(1)
		if v < least {
			ledger.Word(old).Add(1)
		}
	})
	every(20*time.Millisecond, func(n int, key string) {
		var version uint64
		err := users.Update(context.Background(), key, func(context.Context) error {
			within(key, func() { version = ledger.Word(versions + n).Add(1) })
			return nil
		})
		if err != nil {
			ledger.Word(failures).Add(1)
			return
		}
		ledger.Word(updates).Add(1)
		raise(ledger.Word(updated+n), time.Duration(version))
		for w := range workers {
			if w > 0 {
				ledger.Word(served + t.Slot*workers + w).Add(1)
			}
		}
	})
	all.Wait()
	if err := users.Close(context.Background()); err != nil {
		ledger.Word(failures).Add(1)
	}
	c.Report(true)
}

// No two processes load or update a key at the same time, whatever happens to them. If they are only
// killed, none gets a value that is older than an Update that has returned. Package singleflight's
// documentation says which other faults may bring such a value back, so those are only counted.
func TestLoader(t *testing.T) {
	for name, calm := range map[string]bool{"killed": true, "all faults": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, task{Role: "loader", Backend: "redisv9", Calm: calm})
			r.disturb(proveFor(t))
			r.finish()
			overlaps := belief.Overlaps(r.ledger.Beliefs())
			word := func(n int) uint64 { return r.ledger.Word(n).Load() }
			assert.Empty(t, overlaps)
			if calm {
				assert.Zero(t, word(old), "values that were older than an Update")
			}
			assert.NotZero(t, word(updates))
			proof.Record(t, "Loads", name, proof.Of("killed", r.kills.Load()), proof.Of("stopped", r.stops.Load()),
				proof.Of("values", word(gets)), proof.Of("updates", word(updates)), proof.Of("loads", word(loads)),
				proof.Of("without the lock", word(unlocked)), proof.Of("at the same time", len(overlaps)),
				proof.Of("older than an Update", word(old)))
		})
	}
}

// The same run finds a cache that keeps old values.
func TestLoaderFindsOldValues(t *testing.T) {
	t.Parallel()
	r := start(t, task{Role: "loader", Backend: "redisv9", Calm: true, Lie: "deletes nothing"})
	assert.Eventually(t, func() bool { return r.ledger.Word(old).Load() > 0 }, patience, time.Millisecond)
}
