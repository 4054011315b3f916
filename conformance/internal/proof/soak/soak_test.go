// Package soak runs a mixed load on all backends at once, through links that fail, and proves that
// nothing grows and that nothing is left.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/internal/pubsub"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	ttl      = 3 * time.Second
	patience = 2 * time.Minute
)

// backend is a server and what uses it.
type backend struct {
	server *server // nil: memory
	opens  []load.Open
	keys   []string

	proxy   *faultproxy.Proxy
	lockers []locker.Locker
	load    *load.Load
}

// Under a mixed load on all backends, through links that fail, goroutines, connections, keys and
// memory do not grow. When the load has ended, no lock and no key is left on the servers, and when
// the clients are closed, no connection and no goroutine.
func TestSoak(t *testing.T) {
	testserver.Variant(t, "in its short form it finds hardly anything that the other tests do not")
	inMemory := memory.New()
	redis := newRedis(t)
	servers := map[string]*server{"Redis": redis, "memcached": newMemcached(t), "PostgreSQL": newPostgres(t), "etcd": newEtcd(t)}
	backends := map[string]*backend{
		"memory":              {opens: []load.Open{func(testing.TB, string) locker.Locker { return inMemory }}},
		"redisv9 and rueidis": {server: redis, opens: []load.Open{load.Redisv9(), load.Rueidis}},
		"redisv9+batching":    {server: redis, opens: []load.Open{load.Redisv9(redisv9.WithBatching(1))}},
		"redigo":              {server: redis, opens: []load.Open{load.Redigo}},
		"memcache":            {server: servers["memcached"], opens: []load.Open{load.Memcache}},
		"postgres":            {server: servers["PostgreSQL"], opens: []load.Open{load.Postgres()}},
		"etcd":                {server: servers["etcd"], opens: []load.Open{load.Etcd}},
	}
	for name, b := range backends {
		b.keys = []string{"a of " + name, "b of " + name, "c of " + name}
	}
	before := look(t, servers)
	var samples []sample
	// The clients are closed at the end of this part. Their connections for messages end later.
	t.Run("load", func(t *testing.T) { samples = soak(t, backends, servers, proof.Duration(t, 4*time.Second)) })
	if t.Failed() {
		return
	}
	pubsub.StopLingering()
	var after sample
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		after = look(t, servers)
		assert.LessOrEqual(c, after.goroutines, before.goroutines+1, "goroutines") // this function's own
		for name := range servers {
			assert.LessOrEqual(c, after.connections[name], before.connections[name], "connections to "+name)
		}
	}, patience, 100*time.Millisecond)
	assert.Less(t, after.heap, before.heap+16<<20, "memory of the process")
	rows := map[string]func(s sample) any{
		"goroutines":            func(s sample) any { return s.goroutines },
		"memory of the process": func(s sample) any { return megabytes(s.heap) },
	}
	for name := range servers {
		rows["connections to "+name] = func(s sample) any { return s.connections[name] }
		rows["keys on "+name] = func(s sample) any { return s.keys[name] }
		rows["memory of "+name] = func(s sample) any { return megabytes(s.memory[name]) }
	}
	for name, of := range rows {
		proof.Record(t, "Soak", name, proof.Of("before", of(before)), proof.Of("after a quarter", of(samples[len(samples)/4])),
			proof.Of("in the end", of(samples[len(samples)-1])), proof.Of("after it", of(after)))
	}
}

func megabytes(bytes int) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// soak runs the load for d, and returns samples that it takes at equal intervals.
func soak(t *testing.T, backends map[string]*backend, servers map[string]*server, d time.Duration) (samples []sample) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var faults sync.WaitGroup
	for _, b := range backends {
		var addr string
		if b.server != nil {
			addr = b.server.addr
			b.proxy = faultproxy.New(t, addr)
			faults.Go(func() { disturb(t, ctx, b.proxy) })
		}
		for i := range 4 {
			at := addr
			if b.proxy != nil && i < 2 {
				at = b.proxy.Addr
			}
			b.lockers = append(b.lockers, b.opens[i%len(b.opens)](t, at))
		}
	}
	for _, b := range backends {
		b.load = load.Start(load.Config{Lockers: b.lockers, Workers: 2, Keys: b.keys, TTL: ttl,
			Hold: 10 * time.Millisecond, Wait: 2 * time.Second, Vanish: true})
	}
	for ctx.Err() == nil {
		rest(ctx, d/20)
		samples = append(samples, look(t, servers))
	}
	faults.Wait()
	var served sync.WaitGroup
	for name, b := range backends {
		r := b.load.Stop(t)
		assert.Empty(t, r.Overlaps, "two holders of "+name)
		assert.Less(t, r.Overrun, time.Minute, "a caller of %s did not return when its context ended", name)
		served.Go(func() { load.Serves(t, b.lockers, b.keys, ttl) })
		proof.Record(t, "Soak, locks", name, proof.Of("leases", r.Leases), proof.Of("errors", r.Errors),
			proof.Of("gave up", r.GaveUp), proof.Of("lost leases", r.Lost), proof.Of("overlaps", len(r.Overlaps)),
			proof.Of("longest wait", r.LongestWait.Round(time.Millisecond)))
	}
	served.Wait()
	// In a few seconds, calls that hang together look like growth.
	if d > 10*time.Second {
		for _, growth := range growths(samples) {
			assert.Fail(t, growth)
		}
	}
	for name, s := range servers {
		require.Eventuallyf(t, func() bool { return s.left(t) == 0 }, patience, 50*time.Millisecond,
			"something is left on %s", name)
	}
	return samples
}

// growths returns what is larger in the second half than it was in the first, by more than varies.
func growths(samples []sample) (found []string) {
	check := func(what string, slack int, of func(sample) int) {
		most := func(part []sample) int {
			return of(slices.MaxFunc(part, func(a, b sample) int { return of(a) - of(b) }))
		}
		first, second := most(samples[:len(samples)/2]), most(samples[len(samples)/2:])
		if second > first+first/2+slack {
			found = append(found, fmt.Sprintf("%s grows from %d to %d", what, first, second))
		}
	}
	check("goroutines", 100, func(s sample) int { return s.goroutines })
	check("memory of the process", 32<<20, func(s sample) int { return s.heap })
	for name := range samples[0].connections {
		check("connections to "+name, 20, func(s sample) int { return s.connections[name] })
		check("keys on "+name, 20, func(s sample) int { return s.keys[name] })
		check("memory of "+name, 32<<20, func(s sample) int { return s.memory[name] })
	}
	return found
}

// Every kind of growth is detected.
func TestGrowths(t *testing.T) {
	var samples []sample
	for i := range 20 {
		one := func(n int) map[string]int { return map[string]int{"server": n} }
		samples = append(samples, sample{100 * i, i << 23, one(10 * i), one(10 * i), one(i << 23)})
	}
	assert.Len(t, growths(samples), 5)
	for i := range samples {
		samples[i] = samples[10+i%3]
	}
	assert.Empty(t, growths(samples))
}

// disturb cuts and hangs a link until ctx ends, and heals it.
func disturb(t *testing.T, ctx context.Context, p *faultproxy.Proxy) {
	defer p.Heal(t)
	for ctx.Err() == nil {
		rest(ctx, 500*time.Millisecond+rand.N(time.Second))
		switch rand.N(3) {
		case 0:
			p.Hang()
		case 1:
			p.Refuse()
		}
		p.Cut()
		rest(ctx, rand.N(300*time.Millisecond))
		p.Heal(t)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// sample is what there is at a moment. Those of servers are by name.
type sample struct {
	goroutines, heap          int
	connections, keys, memory map[string]int
}

func look(t *testing.T, servers map[string]*server) sample {
	t.Helper()
	s := sample{connections: make(map[string]int), keys: make(map[string]int), memory: make(map[string]int)}
	for name, server := range servers {
		s.connections[name], s.keys[name], s.memory[name] = server.connections(t), server.left(t), server.memory(t)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap, s.goroutines = int(m.HeapAlloc), runtime.NumGoroutine()
	return s
}
