package memcache

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stepping is a memcached with the clock of the real one, which counts whole seconds and is read
// about every second: when those readings drift across the turn of a second, it steps by two.
type stepping struct {
	mu    sync.Mutex
	clock int64
	steps int // by two
	items map[string]steppingItem
	cas   int
}

type steppingItem struct {
	value, flags string
	cas          int
	expires      int64 // when the clock is there
}

// every is the time between two readings of a real memcached's clock.
const every = 1000700 * time.Microsecond

// startStepping starts a server whose clock is first read at a fraction of a second. It ends with
// ctx.
func startStepping(ctx context.Context, fraction time.Duration) *stepping {
	s := &stepping{items: make(map[string]steppingItem)}
	begun := time.Now().Add(-fraction)
	go func() {
		for tick := time.NewTicker(every); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			s.mu.Lock()
			now := int64(time.Since(begun) / time.Second)
			if now-s.clock >= 2 {
				s.steps++
			}
			s.clock = now
			s.mu.Unlock()
		}
	}()
	return s
}

// client returns a client of the server.
func (s *stepping) client(tb testing.TB) *gomemcache.Client {
	client := newClient(tb, "127.0.0.1:1")
	client.DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.serve(theirs)
		return ours, nil
	}
	return client
}

func (s *stepping) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		request := strings.Fields(line)
		var value string
		if request[0] != "gets" {
			if value, err = r.ReadString('\n'); err != nil {
				return
			}
		}
		if _, err := conn.Write([]byte(s.answer(request, value))); err != nil {
			return
		}
	}
}

// answer carries out "gets key", "add key flags expiration length" or "cas key flags expiration
// length number".
func (s *stepping) answer(request []string, value string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := request[1]
	item, stored := s.items[key]
	stored = stored && item.expires > s.clock
	switch {
	case request[0] == "gets" && !stored:
		return "END\r\n"
	case request[0] == "gets":
		return fmt.Sprintf("VALUE %s %s %d %d\r\n%sEND\r\n", key, item.flags, len(item.value)-2, item.cas, item.value)
	case request[0] == "add" && stored:
		return "NOT_STORED\r\n"
	case request[0] == "cas" && !stored:
		return "NOT_FOUND\r\n"
	case request[0] == "cas" && request[5] != fmt.Sprint(item.cas):
		return "EXISTS\r\n"
	}
	var lives int64
	if _, err := fmt.Sscan(request[3], &lives); err != nil {
		return "CLIENT_ERROR " + err.Error() + "\r\n"
	}
	s.cas++
	s.items[key] = steppingItem{value, request[2], s.cas, s.clock + lives}
	return "STORED\r\n"
}

// While the clock steps by two, no lock ends before its ttl, or later than two seconds after its
// ttl in whole seconds. The proof has this test on real servers.
func TestClockStepsByTwo(t *testing.T) {
	t.Parallel()
	for _, first := range []time.Duration{0, 990, 996, 998, 999} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := startStepping(ctx, first*time.Millisecond)
			a, b := New(s.client(t)), New(s.client(t))
			a.client.MaxIdleConns, b.client.MaxIdleConns = 100, 100
			var all sync.WaitGroup
			for phase := time.Duration(0); phase < 8*time.Second; phase += 61700 * time.Microsecond {
				for _, ttl := range []time.Duration{time.Millisecond, time.Second, 1001 * time.Millisecond} {
					for _, extended := range []bool{false, true} {
						all.Go(func() {
							time.Sleep(phase)
							ends(t, a, b, fmt.Sprintf("%v at %v, extended: %v", ttl, phase, extended), ttl, extended)
						})
					}
				}
			}
			all.Wait()
			if first > 990 {
				assert.Positive(t, s.steps, "the clock did not step")
			}
			require.NoError(t, a.client.Close())
			require.NoError(t, b.client.Close())
		})
	}
}

// ends takes the lock of key for ttl, and fails the test if another client gets it before ttl has
// passed or does not get it two seconds after the ttl's whole seconds.
func ends(t *testing.T, a, b *Locker, key string, ttl time.Duration, extended bool) {
	first := ttl
	if extended {
		first = time.Minute
	}
	ok, err := a.Acquire(t.Context(), key, "a", first)
	assert.NoError(t, err)
	assert.True(t, ok)
	if extended {
		ok, err = a.Extend(t.Context(), key, "a", ttl)
		assert.NoError(t, err)
		assert.True(t, ok)
	}
	time.Sleep(ttl - 1)
	ok, err = b.Acquire(t.Context(), key, "b", time.Minute)
	assert.NoError(t, err)
	assert.False(t, ok, "%s: taken early", key)
	rounded := (ttl + time.Second - 1).Truncate(time.Second)
	time.Sleep(rounded + 2*time.Second + 10*(every-time.Second) - (ttl - 1))
	ok, err = b.Acquire(t.Context(), key, "b", time.Minute)
	assert.NoError(t, err)
	assert.True(t, ok, "%s: not free", key)
}
