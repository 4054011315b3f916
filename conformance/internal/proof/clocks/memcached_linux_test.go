package clocks

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The server's clock is CLOCK_MONOTONIC in whole seconds, read every 1.0007 seconds or so. When
// those readings drift across the turn of a second, the clock steps by two, and an item stored for
// N seconds lives for less than N-1. Servers that are started just before the turn of a second do
// so soon: here locks of one second are held, all the time, while they do. On a busy machine they
// may start at another time, and drift less, so there are several tries, each at another time of the
// second; a test in which no clock has stepped has checked nothing. The tests of package memcache
// have the same clock in a bubble.
func TestClockStepsByTwo(t *testing.T) {
	if os.Getenv("LOCKER_PROVE") == "" {
		t.Skip("only in make prove: it waits for minutes until the clock of a server steps")
	}
	t.Parallel()
	for try := range 10 {
		early := time.Duration(try) * 41300 * time.Microsecond // for servers that take longer to start
		if steps := holdWhileClocksStep(t, early, 20*time.Second); steps > 0 || t.Failed() {
			return
		}
	}
	t.Skip("inconclusive: no server's clock made a step by two")
}

// holdWhileClocksStep starts servers just before the turn of a second, or so much earlier, and
// holds locks on them until the clock of one has stepped by two, and a little longer, or until
// limit. It returns how many steps there were.
func holdWhileClocksStep(t *testing.T, early, limit time.Duration) int32 {
	const servers, keys = 6, 5
	var stop atomic.Bool
	var all sync.WaitGroup
	var steps atomic.Int32
	var addrs []string
	for i := range servers {
		// The server takes some milliseconds until it first reads the clock.
		time.Sleep(untilPhase(t, 960*time.Millisecond-early+time.Duration(i)*8*time.Millisecond))
		addrs = append(addrs, testserver.Memcached(t).Addr)
	}
	for i, addr := range addrs {
		a, b := load.Memcache(t, addr), load.Memcache(t, addr)
		for k := range keys {
			all.Go(func() {
				for n := 0; !stop.Load() && !t.Failed(); n++ {
					expires(t, a, b, fmt.Sprintf("server %d, key %d, round %d", i, k, n), time.Second, n%2 == 1)
					// The lock was freed as the clock moved: leave that phase.
					time.Sleep(time.Duration(k) * time.Second / keys)
				}
			})
		}
		all.Go(func() {
			clock := newServerClock(t, addr)
			last := clock.read(t)
			for !stop.Load() && !t.Failed() {
				time.Sleep(200 * time.Millisecond) // five times a second: a step of two is one of the server's
				now := clock.read(t)
				if now-last >= 2 {
					steps.Add(1)
				}
				last = now
			}
		})
	}
	for end := time.Now().Add(limit); time.Now().Before(end) && steps.Load() == 0 && !t.Failed(); {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // what was stored before the step has to expire
	stop.Store(true)
	all.Wait()
	t.Logf("the clocks of %d servers made %d steps by two", servers, steps.Load())
	return steps.Load()
}

// expires takes the lock of key for ttl, and fails the test if another client gets it before ttl has
// passed or does not get it soon after.
func expires(t *testing.T, a, b locker.Locker, key string, ttl time.Duration, extended bool) {
	first := ttl
	if extended {
		first = time.Minute
	}
	start := time.Now()
	ok, err := a.Acquire(t.Context(), key, "a", first)
	if !assert.NoError(t, err) || !assert.True(t, ok) {
		return
	}
	if extended {
		start = time.Now()
		ok, err := a.Extend(t.Context(), key, "a", ttl)
		if !assert.NoError(t, err) || !assert.True(t, ok) {
			return
		}
	}
	for {
		ok, err := b.Acquire(t.Context(), key, "b", time.Minute)
		if !assert.NoError(t, err) {
			return
		}
		if ok {
			took := time.Since(start)
			assert.GreaterOrEqual(t, took, ttl, "%s: taken %v early", key, ttl-took)
			return
		}
		if !assert.Less(t, time.Since(start), patience, "%s: not free", key) {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// untilPhase returns the time until CLOCK_MONOTONIC is at that fraction of its second.
func untilPhase(t *testing.T, phase time.Duration) time.Duration {
	const clockMonotonic = 1
	var now syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	require.Zero(t, errno)
	return (phase - time.Duration(now.Nsec) + time.Second) % time.Second
}

// serverClock returns the server's clock.
type serverClock struct {
	conn  net.Conn
	lines *bufio.Scanner
}

func newServerClock(t *testing.T, addr string) *serverClock {
	conn, err := net.Dial("tcp", addr)
	if !assert.NoError(t, err) {
		t.FailNow()
	}
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return &serverClock{conn, bufio.NewScanner(conn)}
}

func (c *serverClock) read(t *testing.T) (seconds int) {
	_, err := c.conn.Write([]byte("stats\r\n"))
	assert.NoError(t, err)
	for c.lines.Scan() && c.lines.Text() != "END" {
		if value, ok := strings.CutPrefix(c.lines.Text(), "STAT time "); ok {
			seconds, err = strconv.Atoi(value)
			assert.NoError(t, err)
		}
	}
	assert.NoError(t, c.lines.Err())
	return seconds
}
