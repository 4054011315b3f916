package redigo

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contender is one client in a race for one key.
type contender interface {
	acquire() (bool, error)
	extend() (bool, error)
	release() (bool, error)
}

// race lets contenders race for a key that has just expired, round after round, and returns an
// error for the first bad round: without exactly one winner, with a winner that could not extend
// and release the lock, or with a loser that could.
func race(t *testing.T, raw rawConn, key string, rounds int, all []contender) error {
	for round := range rounds {
		raw.do("SET", key, value{raw.now()/1000 - 1, "gone"}.encode(), "EX", garbage(0))
		start := make(chan struct{})
		var racing sync.WaitGroup
		winners := make(chan contender, len(all))
		var failed atomic.Pointer[error]
		for _, c := range all {
			racing.Go(func() {
				<-start
				won, err := c.acquire()
				if err != nil {
					failed.Store(&err)
				}
				if won {
					winners <- c
				}
			})
		}
		close(start)
		racing.Wait()
		close(winners)
		if err := failed.Load(); err != nil {
			t.Fatalf("round %d: %v", round, *err)
		}
		if len(winners) != 1 {
			return fmt.Errorf("round %d: %d winners", round, len(winners))
		}
		winner := <-winners
		for _, loser := range all {
			if loser == winner {
				continue
			}
			if ok, err := loser.release(); ok || err != nil {
				return fmt.Errorf("round %d: a loser released the lock: %v %v", round, ok, err)
			}
			break // one is enough
		}
		if ok, err := winner.extend(); !ok || err != nil {
			return fmt.Errorf("round %d: the winner could not extend its lock: %v %v", round, ok, err)
		}
		if ok, err := winner.release(); !ok || err != nil {
			return fmt.Errorf("round %d: the winner could not release its lock: %v %v", round, ok, err)
		}
		if raw.do("EXISTS", key) != int64(0) {
			return fmt.Errorf("round %d: something is left of the lock", round)
		}
	}
	return nil
}

const (
	racers = 20
	rounds = 1000
)

// safe is the package under test.
type safe struct {
	l     *Locker
	token string
}

func (s *safe) acquire() (bool, error) { return s.l.Acquire(background, "k", s.token, time.Minute) }
func (s *safe) extend() (bool, error)  { return s.l.Extend(background, "k", s.token, time.Minute) }
func (s *safe) release() (bool, error) { return s.l.Release(background, "k", s.token) }

func TestRaceForExpired(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	var all []contender
	for i := range racers {
		all = append(all, &safe{New(newPool(t, srv.Addr)), "client " + strconv.Itoa(i)})
	}
	require.NoError(t, race(t, newRaw(t, srv.Addr), "locker:k", rounds, all))
}

// classic is the textbook lock of SETNX, GET and GETSET, without WATCH. It even gets the server's
// time, and compares whole values when it extends and releases.
type classic struct {
	pool  *redis.Pool
	name  string
	mine  string
	clock func() int64 // ms
}

func (c *classic) with(f func(conn redis.Conn) (bool, error)) (bool, error) {
	conn := c.pool.Get()
	defer conn.Close()
	return f(conn)
}

func (c *classic) fresh() string { return value{c.clock() + 60_000, c.name}.encode() }

func (c *classic) acquire() (bool, error) {
	return c.with(func(conn redis.Conn) (bool, error) {
		mine := c.fresh()
		if created, err := redis.Bool(conn.Do("SETNX", "locker:k", mine)); err != nil || created {
			c.mine = mine
			return created, err
		}
		held, err := redis.String(conn.Do("GET", "locker:k"))
		if err != nil || c.lives(held) {
			return false, ignoreNil(err)
		}
		old, err := redis.String(conn.Do("GETSET", "locker:k", mine))
		if err != nil || c.lives(old) {
			return false, ignoreNil(err)
		}
		c.mine = mine
		return true, nil
	})
}

func (c *classic) lives(held string) bool {
	v, err := decode([]byte(held))
	return err != nil || v.expiry > c.clock()
}

func (c *classic) extend() (bool, error) {
	return c.with(func(conn redis.Conn) (bool, error) {
		held, err := redis.String(conn.Do("GET", "locker:k"))
		if err != nil || held != c.mine {
			return false, ignoreNil(err)
		}
		c.mine = c.fresh()
		_, err = conn.Do("GETSET", "locker:k", c.mine)
		return err == nil, err
	})
}

func (c *classic) release() (bool, error) {
	return c.with(func(conn redis.Conn) (bool, error) {
		held, err := redis.String(conn.Do("GET", "locker:k"))
		if err != nil || held != c.mine {
			return false, ignoreNil(err)
		}
		return redis.Bool(conn.Do("DEL", "locker:k"))
	})
}

func ignoreNil(err error) error {
	if err == redis.ErrNil {
		return nil
	}
	return err
}

// The race detects what is wrong with the classic lock. Otherwise it would prove nothing.
func TestRaceDetects(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	raw := newRaw(t, srv.Addr)
	start, first := time.Now(), raw.now()/1000
	clock := func() int64 { return first + time.Since(start).Milliseconds() }
	var all []contender
	for i := range racers {
		all = append(all, &classic{pool: newPool(t, srv.Addr), name: "client " + strconv.Itoa(i), clock: clock})
	}
	err := race(t, raw, "locker:k", rounds, all)
	require.Error(t, err, "the classic lock passed")
	t.Log(err)
}

// Holders increment an unguarded counter, and no increment is lost, while locks expire and are
// taken over, extended and released.
func TestCounting(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	raw := newRaw(t, srv.Addr)
	const clients, each = 8, 60
	var inside, counted atomic.Int64
	var lastFence atomic.Uint64
	var all sync.WaitGroup
	for c := range clients {
		l := New(newPool(t, srv.Addr))
		all.Go(func() {
			for n := 0; n < each && !t.Failed(); {
				token := fmt.Sprintf("%d:%d", c, n)
				ok, err := l.Acquire(background, "k", token, time.Minute)
				if !assert.NoError(t, err) {
					return
				}
				if !ok {
					time.Sleep(time.Millisecond)
					continue
				}
				assert.EqualValues(t, 1, inside.Add(1), "two inside")
				counted.Add(1)
				fence, ok, err := l.Fence(background, "k", token)
				assert.NoError(t, err)
				assert.True(t, ok)
				assert.Greater(t, fence, lastFence.Swap(fence))
				if n%2 == 0 {
					ok, err := l.Extend(background, "k", token, time.Minute)
					assert.NoError(t, err)
					assert.True(t, ok)
				}
				inside.Add(-1)
				if n%3 == 0 { // leaves it to expire
					ok, err = l.Extend(background, "k", token, time.Millisecond)
				} else {
					ok, err = l.Release(background, "k", token)
				}
				assert.NoError(t, err)
				assert.True(t, ok)
				n++
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, clients*each, counted.Load())
	keys, err := redis.Strings(raw.do("KEYS", "*"), nil)
	require.NoError(t, err)
	for _, key := range keys {
		assert.False(t, strings.Contains(key, "tmp"), "%q is left", key)
	}
}
