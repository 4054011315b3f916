//go:build unix

package cohort_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { fleet.Main(map[string]fleet.Role{"lingerer": linger}) }

const (
	stormTTL    = 600 * time.Millisecond
	stormLinger = 3 * time.Second // so that a process that goes on after its locks have expired has some left
	stormKeys   = 12
)

// enter marks a lock as held until the lease's deadline, as the holder believes, by the server's
// clock, which is this machine's. It returns the other holder if there is one. A process that was
// stopped beyond its deadline enters nothing. The client may repeat it.
var enter = redis.NewScript(`
local clock = redis.call('TIME')
local left = ARGV[2] - math.floor(clock[1] * 1000 + clock[2] / 1000)
if left < 1 then
	return 'late'
end
local other = redis.call('GET', KEYS[1])
if other and other ~= ARGV[1] then
	return other
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', left)
return 'in'
`)

var leave = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
	redis.call('DEL', KEYS[1])
end
return 1
`)

type stormOrder struct {
	Addr  string
	Slots int // of batches; 0: none
}

type stormReport struct{ Served, Refused, Lost, Failed int64 }

// linger is a process that takes a few locks again and again, until it gets a second order.
func linger(c *fleet.Child) {
	var o stormOrder
	c.Receive(&o)
	client := redis.NewClient(&redis.Options{Addr: o.Addr, ContextTimeoutEnabled: true})
	l := cohort.New(redisv9.New(client, redisv9.WithBatching(o.Slots)),
		cohort.WithLinger(stormLinger), cohort.WithMaxTenure(10*time.Millisecond))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var served, refused, lost, failed atomic.Int64
	for range 6 {
		all.Go(func() {
			for ctx.Err() == nil {
				key := fmt.Sprint("k", rand.N(stormKeys))
				lock := locker.Lock
				if rand.N(3) == 0 {
					lock = locker.TryLock
				}
				ctx, cancel := context.WithTimeout(ctx, time.Second+rand.N(time.Second))
				lease, err := lock(ctx, l, key, stormTTL)
				cancel()
				if err != nil {
					refused.Add(1)
					continue
				}
				outcome, isMarked := critical(client, lease)
				switch outcome {
				case "in":
				case "late":
					lost.Add(1)
				default:
					failed.Add(1)
				}
				served.Add(1)
				if !isMarked && rand.N(400) > 0 { // otherwise it vanishes
					if lease.Unlock(context.Background()) != nil {
						lost.Add(1)
					}
				}
			}
		})
	}
	var stop bool
	c.Receive(&stop)
	cancel()
	all.Wait()
	if err := l.Close(); err != nil {
		failed.Add(1)
	}
	c.Report(stormReport{served.Load(), refused.Load(), lost.Load(), failed.Load()})
}

// critical is what only the holder may do. isMarked reports whether the mark may still be there,
// since a request had no answer: then the lock must not be released.
func critical(client *redis.Client, lease *locker.Lease) (outcome any, isMarked bool) {
	ctx := context.Background()
	me, deadline := lease.Token(), lease.Deadline().UnixMilli()
	outcome, err := enter.Run(ctx, client, []string{"inside:" + lease.Key()}, me, deadline).Result()
	switch {
	case err != nil:
		return err, true
	case outcome == "late":
		return outcome, false
	case outcome != "in":
		client.RPush(ctx, "violations", fmt.Sprintf("%s: %s and %v", lease.Key(), me, outcome))
		return outcome, false
	}
	if rand.N(2) == 0 {
		time.Sleep(rand.N(20 * time.Millisecond))
	}
	err = leave.Run(ctx, client, []string{"inside:" + lease.Key()}, me).Err()
	return outcome, err != nil
}

// Processes that let their locks linger are killed, stopped and continued, and their connections
// are cut. There are never two holders of a lock who may both believe that they hold it, and
// nothing is left in the end.
func TestChaosLingering(t *testing.T) {
	for name, slots := range map[string][]int{
		"each call alone": {0, 0, 0, 0},
		"batches":         {1, 4, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stormOfProcesses(t, slots)
		})
	}
}

// stormOfProcesses runs a process for each number of slots.
func stormOfProcesses(t *testing.T, slots []int) {
	t.Helper()
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	processes := make(fleet.Fleet, len(slots))
	launch := func(i int) {
		f, err := fleet.Start("lingerer", 1)
		require.NoError(t, err)
		require.NoError(t, f.Send(stormOrder{addr, slots[i]}))
		processes[i] = f[0]
	}
	t.Cleanup(func() { processes.Kill() })
	for i := range processes {
		launch(i)
	}
	killed, stopped, cut := 0, 0, 0
	for end := time.Now().Add(max(2*chaosTime(t), 6*time.Second)); time.Now().Before(end); {
		time.Sleep(rand.N(300 * time.Millisecond))
		if rand.N(3) == 0 { // demands and answers among them, or requests
			kind := []string{"pubsub", "normal"}[rand.N(2)]
			require.NoError(t, client.Do(t.Context(), "client", "kill", "type", kind, "skipme", "yes").Err())
			cut++
			continue
		}
		i := rand.N(len(processes))
		if rand.N(3) == 0 {
			fleet.Fleet{processes[i]}.Kill()
			killed++
			launch(i)
			continue
		}
		require.NoError(t, processes[i].Signal(syscall.SIGSTOP))
		time.Sleep(rand.N(3 * stormTTL))
		require.NoError(t, processes[i].Signal(syscall.SIGCONT))
		stopped++
	}
	require.NoError(t, processes.Send(true))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reports, err := fleet.Receive[stormReport](ctx, processes)
	require.NoError(t, err)
	t.Logf("%d killed, %d stopped, connections cut %d times; the last ones report %+v", killed, stopped, cut, reports)
	assert.Empty(t, client.LRange(ctx, "violations", 0, 9).Val(), "two holders")
	var sum stormReport
	for _, r := range reports {
		sum.Served += r.Served
		sum.Failed += r.Failed
	}
	assert.Positive(t, sum.Served)

	plain := redisv9.New(client)
	start := time.Now()
	for i := range stormKeys {
		lease, err := locker.Lock(ctx, plain, fmt.Sprint("k", i), time.Minute)
		require.NoError(t, err, "a lock is left")
		require.NoError(t, lease.Unlock(ctx))
	}
	t.Logf("the locks were free after %v", time.Since(start))
}
