package lincheck

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/sqllock"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// backend is what histories are made on.
type backend struct {
	server func(tb testing.TB) string // its address
	open   func(tb testing.TB, addr string) locker.Locker
	ttls   []time.Duration
	pause  time.Duration
	waits  bool
	fences bool
	twice  bool          // see Leniency
	undoes bool          // see Leniency
	leaves bool          // see Leniency
	haste  time.Duration // see Plan

	lingers bool // the cohorts let locks linger, and there are no faults
}

var inMemory = memory.New()

var backends = map[string]backend{
	"memory": {
		open: func(testing.TB, string) locker.Locker { return inMemory },
		ttls: []time.Duration{3 * time.Millisecond, 6 * time.Millisecond, time.Hour}, pause: 3 * time.Millisecond,
		waits: true, fences: true, haste: 5 * time.Millisecond,
	},
	"redisv9":             onRedis(openRedisv9()),
	"redisv9+batching":    onRedis(openRedisv9(redisv9.WithBatching(1))),
	"rueidis":             onRedis(openRueidis),
	"redisv9 and rueidis": onRedis(inTurn(openRedisv9(), openRueidis, openRedisv9(redisv9.WithBatching(1)))),
	"redigo": {
		server: func(tb testing.TB) string { return testserver.Redis(tb).Addr },
		open: func(tb testing.TB, addr string) locker.Locker {
			pool := &redigoclient.Pool{MaxIdle: 64, DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
				return redigoclient.DialContext(ctx, "tcp", addr, redigoclient.DialConnectTimeout(time.Second),
					redigoclient.DialReadTimeout(time.Second), redigoclient.DialWriteTimeout(time.Second))
			}}
			tb.Cleanup(func() { pool.Close() })
			return redigo.New(pool)
		},
		ttls: []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, time.Hour}, pause: 40 * time.Millisecond,
		fences: true, twice: true, // its Acquire has several steps
	},
	"memcache": {
		server: func(tb testing.TB) string { return testserver.Memcached(tb).Addr },
		open: func(tb testing.TB, addr string) locker.Locker {
			client := gomemcache.New(addr)
			client.Timeout, client.MaxIdleConns = time.Second, 64
			tb.Cleanup(func() { client.Close() })
			return memcache.New(client)
		},
		ttls: []time.Duration{time.Second, time.Hour}, pause: 500 * time.Millisecond,
	},
	"postgres": {
		server: postgresServer, open: openPostgres,
		ttls: []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, time.Hour}, pause: 40 * time.Millisecond,
		waits: true, fences: true, leaves: true,
	},
	"sqllock on MariaDB": {
		server: func(tb testing.TB) string { return testserver.MariaDB(tb).Addr }, open: openMariaDB,
		ttls: []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, time.Hour}, pause: 40 * time.Millisecond,
		fences: true,
	},
	"etcd": {
		server: func(tb testing.TB) string { return testserver.Etcd(tb).Addr }, open: openEtcd,
		ttls: []time.Duration{time.Second, time.Hour}, pause: 500 * time.Millisecond,
		waits: true, fences: true, undoes: true, leaves: true,
	},
}

type open func(tb testing.TB, addr string) locker.Locker

// onRedis is a backend whose Lockers have the format of redisv9.
func onRedis(open open) backend {
	return backend{
		server: func(tb testing.TB) string { return testserver.Redis(tb).Addr },
		open:   open,
		ttls:   []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, time.Hour}, pause: 20 * time.Millisecond,
		waits: true, fences: true, leaves: true, haste: 60 * time.Millisecond,
	}
}

func openRedisv9(opts ...redisv9.Option) open {
	return func(tb testing.TB, addr string) locker.Locker {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true,
			DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
		tb.Cleanup(func() { client.Close() })
		return redisv9.New(client, opts...)
	}
}

func openRueidis(tb testing.TB, addr string) locker.Locker {
	var client rueidis.Client
	require.Eventually(tb, func() (ok bool) { // it connects at once, which takes long on a busy machine
		var err error
		client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true,
			Dialer: net.Dialer{Timeout: time.Second}, ConnWriteTimeout: time.Second})
		return err == nil
	}, time.Minute, time.Millisecond)
	tb.Cleanup(client.Close)
	return rueidislocker.New(client)
}

func openMariaDB(tb testing.TB, addr string) locker.Locker {
	db, err := sql.Open("mysql", testserver.MariaDBUser+"@tcp("+addr+")/"+testserver.MariaDBDatabase+
		"?interpolateParams=true&timeout=1s&readTimeout=1s&writeTimeout=1s")
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(64)
	l := sqllock.New(db, sqllock.MySQL)
	require.NoError(tb, l.EnsureSchema(tb.Context()))
	return l
}

// inTurn makes Lockers of several kinds share locks: it opens
// one by each of the functions in turn.
func inTurn(opens ...open) open {
	var n atomic.Int64
	return func(tb testing.TB, addr string) locker.Locker {
		return opens[int(n.Add(1)-1)%len(opens)](tb, addr)
	}
}

// proveFor is how long histories are made on each backend: LOCKER_PROVE, or 2 seconds.
func proveFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("LOCKER_PROVE")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// Histories of clients with their own connections, most of them through a link that fails all the
// time, are linearizable.
func TestBackends(t *testing.T) {
	for name, b := range backends {
		for _, over := range []bool{false, true} {
			title := name
			if over {
				title += "+cohort"
			}
			t.Run(title, func(t *testing.T) {
				if title != "memory" && title != "redisv9" && title != "redisv9+cohort" {
					testserver.Variant(t, proof.ShortForm)
				}
				t.Parallel()
				b.prove(t, over)
			})
		}
	}
}

// Locks that linger are free to all others, as long as the process that keeps them can release them:
// there are no faults.
func TestLingering(t *testing.T) {
	for name, b := range map[string]backend{
		"memory":                        backends["memory"],
		"redisv9":                       backends["redisv9"],
		"redisv9+batching":              backends["redisv9+batching"],
		"redisv9+batching with 4 slots": onRedis(openRedisv9(redisv9.WithBatching(4))),
	} {
		t.Run(name+"+cohort that lingers, no faults", func(t *testing.T) {
			if name != "redisv9+batching" {
				testserver.Variant(t, proof.ShortForm)
			}
			t.Parallel()
			b.lingers = true
			b.prove(t, true)
		})
	}
}

const (
	workers = 16 // histories at the same time
	clients = 5
)

func (b backend) prove(t *testing.T, withCohort bool) {
	t.Helper()
	var addr string
	if b.server != nil {
		addr = b.server(t)
	}
	var proxy *faultproxy.Proxy
	if addr != "" && !b.lingers {
		proxy = faultproxy.New(t, addr)
	}
	linger := time.Duration(0)
	if b.lingers {
		linger = 100 * time.Millisecond
	}
	lockers := make([]locker.Locker, clients)
	for i := range lockers {
		at := addr
		if proxy != nil && i%2 == 0 {
			at = proxy.Addr
		}
		lockers[i] = b.open(t, at)
		if withCohort {
			l := cohort.New(lockers[i], cohort.WithLinger(linger))
			t.Cleanup(func() { _ = l.Close() })
			lockers[i] = l
		}
	}
	_, canFence := lockers[0].(locker.Fencer)
	plan := Plan{
		Lockers: lockers, Ops: 5, TTLs: b.ttls, Pause: b.pause, Timeout: time.Second, Fences: b.fences && canFence,
	}
	if !withCohort { // whose histories are hard to decide as it is
		plan.Haste = b.haste
	}
	but := Leniency{Late: withCohort, Twice: withCohort || b.twice, Undoes: b.undoes, Leaves: b.leaves || withCohort}
	ctx, cancel := context.WithTimeout(t.Context(), proveFor(t))
	defer cancel()
	var faults sync.WaitGroup
	if proxy != nil {
		faults.Go(func() { disturb(t, ctx, proxy) })
	}
	seed, serial := rand.Uint64(), atomic.Uint64{}
	var histories, operations, unknown, failed, undecided, illegal atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				n := serial.Add(1)
				plan := plan
				// A Wait that gives up may release its token later, which must not be another's then.
				plan.Waits = b.waits && n%2 == 0
				plan.Shared = !withCohort && !plan.Waits
				key := fmt.Sprint("lincheck/", seed, "/", n)
				history := plan.Run(context.WithoutCancel(ctx), key, seed+n)
				if but.Leaves && !withCohort {
					checkLeft(t, lockers[1], key, history)
				}
				histories.Add(1)
				operations.Add(int64(len(history)))
				for _, op := range history {
					if op.Outcome == Unknown {
						unknown.Add(1)
						if !op.Hasty {
							failed.Add(1)
						}
					}
				}
				switch Check(history, but, 10*time.Second) {
				case porcupine.Illegal:
					illegal.Add(1)
					report := keep(t, Report(history, but, 10*time.Second))
					assert.Fail(t, "not linearizable", "seed %d, history %d, in %s", seed, n, report)
				case porcupine.Unknown:
					undecided.Add(1)
				}
			}
		})
	}
	running.Wait()
	cancel()
	faults.Wait()
	t.Log("seed", seed)
	assert.NotZero(t, histories.Load())
	// Few histories say little about how many of them are hard.
	assert.LessOrEqual(t, undecided.Load(), max(5, histories.Load()/100), "the checker could not decide too many")
	if proxy != nil {
		assert.NotZero(t, failed.Load(), "the faults had no effect")
	}
	_, name, _ := strings.Cut(t.Name(), "/")
	proof.Record(t, "Histories", strings.ReplaceAll(name, "_", " "), proof.Of("histories", histories.Load()),
		proof.Of("operations", operations.Load()), proof.Of("of unknown outcome", unknown.Load()),
		proof.Of("illegal", illegal.Load()), proof.Of("undecided", undecided.Load()))
}

// checkLeft checks that no Wait that has given up keeps the lock, which [Leniency.Leaves] allows.
func checkLeft(t *testing.T, l locker.Locker, key string, history []Op) {
	t.Helper()
	took, gaveUp := make(map[string]bool), make(map[string]bool)
	for _, op := range history {
		switch {
		case op.Outcome != No:
			took[op.Token] = true // and may have the lock by another operation
		case op.Kind == Wait && !took[op.Token]:
			gaveUp[op.Token] = true
		}
	}
	assert.Eventually(t, func() bool {
		info, err := l.(locker.Inspector).Inspect(t.Context(), key)
		return err == nil && !gaveUp[info.Token]
	}, time.Minute, time.Millisecond, "a Wait that has given up holds %s", key)
}

// keep writes a report to a file of its own, since logs are cut, and returns its path.
func keep(t *testing.T, report string) string {
	t.Helper()
	t.Log(report)
	file, err := os.CreateTemp("", "lincheck-*.txt")
	if !assert.NoError(t, err) {
		return "not kept"
	}
	defer file.Close()
	_, err = file.WriteString(report)
	assert.NoError(t, err)
	return file.Name()
}

// disturb injects faults until ctx ends.
func disturb(t *testing.T, ctx context.Context, p *faultproxy.Proxy) {
	defer p.Heal(t)
	for ctx.Err() == nil {
		switch rand.N(6) {
		case 0:
			p.Cut()
		case 1:
			p.Hang()
			rest(ctx, 100*time.Millisecond)
			p.Heal(t)
		case 2:
			p.Refuse()
			rest(ctx, 20*time.Millisecond)
			p.Heal(t)
		default:
			kinds := []faultproxy.Kind{faultproxy.HoldRequest, faultproxy.HoldReply, faultproxy.DropReply,
				faultproxy.HalfReply, faultproxy.ResetRequest, faultproxy.CloseRequest}
			fault := p.Arm(kinds[rand.N(len(kinds))], 1+rand.N(20))
			rest(ctx, 100*time.Millisecond)
			fault.Release()
			p.Disarm()
		}
		rest(ctx, 50*time.Millisecond)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(rand.N(d)):
	case <-ctx.Done():
	}
}
