package mutants

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/redis/go-redis/v9"
)

// granted is a redisFull with a queue on the server. Each process is notified of its waiters'
// grants on one channel. An entry is "<channel> <id> <ttl> <token>".
type granted struct {
	redisFull
	*hearing
}

// handing is a way to be wrong about grants.
type handing int

const (
	Correct  handing = iota
	believed         // a message is the lock, from when it came
	ghosts           // a grant for one that has gone is dropped
	sure             // a request without an answer is taken for one that did not arrive
	rejoins          // each joins again, the last first, when the connection is back
)

const handOnScript = `
local function handOn()
	while true do
		local head = redis.call('LPOP', KEYS[2])
		if not head then return false end
		local channel, id, ttl, token = string.match(head, '^(%S+) (%S+) (%d+) (.*)$')
		redis.call('SET', KEYS[1], token, 'PX', ttl)
		if redis.call('PUBLISH', channel, id) > 0 then return true end
	end
end
`

var (
	// Either {1}, or {0, the holder's remaining time}: then the entry is in the queue.
	joinQueue = redis.NewScript(handOnScript + `
		if redis.call('EXISTS', KEYS[1]) == 0 and not handOn() then
			redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		end
		if redis.call('GET', KEYS[1]) == ARGV[1] then
			redis.call('PEXPIRE', KEYS[1], ARGV[2])
			redis.call('LREM', KEYS[2], 0, ARGV[3])
			return {1}
		end
		if not redis.call('LPOS', KEYS[2], ARGV[3]) then
			redis.call('RPUSH', KEYS[2], ARGV[3])
		end
		return {0, redis.call('PTTL', KEYS[1])}`)
	acquireQueue = redis.NewScript(handOnScript + `
		if redis.call('EXISTS', KEYS[1]) == 0 and not handOn() or redis.call('GET', KEYS[1]) == ARGV[1] then
			redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
			return 1
		end
		return 0`)
	leaveQueue = redis.NewScript(handOnScript + `
		redis.call('LREM', KEYS[2], 0, ARGV[2])
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		if not handOn() then redis.call('DEL', KEYS[1]) end
		redis.call('PUBLISH', KEYS[1], '')
		return 1`)
)

// hearing is the channel of a process.
type hearing struct {
	wrong   handing
	channel string

	mu      sync.Mutex
	last    int
	waiters map[string]*turn
}

// turn is what a waiter hears, and what is done when it has gone.
type turn struct {
	granted chan time.Time
	again   chan struct{}
	gone    func()
}

func NewGranted(wrong handing) func(l redisFull) granted {
	return func(l redisFull) granted {
		h := &hearing{wrong: wrong, channel: "turns:" + rand.Text(), waiters: make(map[string]*turn)}
		s := l.c.Subscribe(context.Background(), h.channel)
		go func() {
			for {
				m, err := s.Receive(context.Background())
				switch {
				case errors.Is(err, redis.ErrClosed):
					return
				case err != nil:
					time.Sleep(20 * time.Millisecond)
				}
				h.heard(m)
			}
		}()
		return granted{l, h}
	}
}

func (h *hearing) heard(m any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := m.(type) {
	case *redis.Message:
		t := h.waiters[m.Payload]
		switch {
		case t == nil:
		case t.gone != nil:
			go t.gone()
			delete(h.waiters, m.Payload)
		default:
			t.granted <- time.Now()
		}
	case *redis.Subscription:
		for _, t := range h.waiters {
			poke(t.again)
		}
	}
}

func (g granted) queue(key string) []string { return []string{lockPrefix + key, "queue:" + key} }

func (g granted) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if ctx.Err() != nil {
		return outcome(ctx, "acquire", key, false, nil)
	}
	n, err := acquireQueue.Run(ctx, g.c, g.queue(key), token, ms(ttl)).Int64()
	return outcome(ctx, "acquire", key, n == 1, err)
}

func (g granted) Release(ctx context.Context, key, token string) (bool, error) {
	if ctx.Err() != nil {
		return outcome(ctx, "release", key, false, nil)
	}
	n, err := leaveQueue.Run(ctx, g.c, g.queue(key), token, "").Int64()
	return outcome(ctx, "release", key, n == 1, err)
}

func (g granted) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := over(ctx); err != nil {
		return time.Time{}, err
	}
	t := &turn{granted: make(chan time.Time, 100), again: make(chan struct{}, 1)}
	g.mu.Lock()
	g.last++
	id := strconv.Itoa(g.last)
	g.waiters[id] = t
	g.mu.Unlock()
	entry := fmt.Sprintf("%s %s %d %s", g.channel, id, ms(ttl), token)
	served := func(deadline time.Time) (time.Time, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.waiters, id)
		return deadline, nil
	}
	isHeld, begun := false, time.Now()
	for {
		start, asked := time.Now(), make(chan []int64, 1)
		var failed error
		go func() { // not canceled: the entry must be removed after this
			reply, err := joinQueue.Run(context.WithoutCancel(ctx), g.c, g.queue(key), token, ms(ttl), entry).Int64Slice()
			failed = err
			asked <- reply
			close(asked)
		}()
		rest := 200 * time.Millisecond
		select {
		case reply := <-asked:
			switch {
			case over(ctx) != nil:
			case failed != nil:
				return g.leave(ctx, key, token, id, entry, failed, asked)
			case len(reply) == 1:
				return served(start.Add(ttl))
			case len(reply) == 2:
				isHeld, rest = true, min(5*time.Second, time.Duration(reply[1]+2)*time.Millisecond)
			}
		case <-ctx.Done():
		}
		if over(ctx) != nil {
			return g.leave(ctx, key, token, id, entry, g.ended(ctx, key, isHeld), asked)
		}
		select {
		case at := <-t.granted:
			if g.wrong == believed {
				return served(at.Add(ttl))
			}
		case <-t.again:
			if g.wrong == rejoins {
				g.c.LRem(ctx, g.queue(key)[1], 0, entry)
				linger(ctx, 100*time.Millisecond+time.Since(begun)/2)
			}
		case <-time.After(rest):
		case <-ctx.Done():
			return g.leave(ctx, key, token, id, entry, g.ended(ctx, key, isHeld), asked)
		}
	}
}

// ended is the error of a Wait whose ctx has ended.
func (g granted) ended(ctx context.Context, key string, isHeld bool) error {
	if isHeld {
		return fmt.Errorf("wait %q: %w: %w", key, ctx.Err(), locker.ErrHeld)
	}
	return ctx.Err()
}

// leave takes an entry out of the queue, or releases what it was granted, for five seconds, and then
// less often. If the entry may be there still after that, or come there, its grant is released. It
// returns err.
func (g granted) leave(ctx context.Context, key, token, id, entry string, err error,
	asked <-chan []int64) (time.Time, error) {
	release := func(limit time.Duration) bool {
		bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		for bg.Err() == nil {
			if err := leaveQueue.Run(bg, g.c, g.queue(key), token, entry).Err(); err == nil {
				return true
			}
			linger(bg, 50*time.Millisecond)
		}
		return false
	}
	g.mu.Lock()
	if g.wrong == ghosts {
		delete(g.waiters, id)
	} else {
		g.waiters[id].gone = func() { release(5 * time.Second) }
	}
	g.mu.Unlock()
	forget := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.waiters, id)
	}
	isSure := over(ctx) != nil || g.wrong == sure
	go func() {
		for reply := range asked { // it comes to its end
			isSure = isSure && reply != nil || g.wrong == sure
		}
		if isDone := release(5 * time.Second); isDone && isSure {
			forget()
		} else if isDone {
			time.AfterFunc(time.Minute, forget)
		} else if g.wrong != ghosts {
			later(time.Now().Add(time.Minute), release)
		}
	}()
	return time.Time{}, err
}

// later releases something, once a second, until the server has answered and a second after that: a
// request may have arrived meanwhile.
func later(end time.Time, release func(limit time.Duration) bool) {
	time.AfterFunc(time.Second, func() {
		switch isDone := release(100 * time.Millisecond); {
		case isDone:
			time.AfterFunc(time.Second, func() { release(5 * time.Second) })
		case time.Now().Before(end):
			later(end, release)
		}
	})
}

// unsure is a redisFull that assumes that an unanswered Extend has shortened the lock, and frees it
// when that time is over, with the token that was extended, or with that of the current holder.
type unsure struct {
	redisFull
	byKey bool

	mu      sync.Mutex
	holders map[string]string // by key
}

func (u *unsure) holds(key, token string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.holders == nil {
		u.holders = make(map[string]string)
	}
	u.holders[key] = token
}

func (u *unsure) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := u.redisFull.Wait(ctx, key, token, ttl)
	if err == nil {
		u.holds(key, token)
	}
	return deadline, err
}

func (u *unsure) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	ok, err := u.redisFull.Extend(ctx, key, token, ttl)
	if err != nil && over(ctx) == nil {
		time.AfterFunc(ttl, func() {
			holder := token
			if u.byKey {
				u.mu.Lock()
				holder = u.holders[key]
				u.mu.Unlock()
			}
			u.redisFull.Release(context.WithoutCancel(ctx), key, holder)
		})
	}
	return ok, err
}

// RollsBack is a redisLock that undoes an Acquire whose context has ended, with another context.
type RollsBack struct{ redisLock }

// NewRollsBack returns a Locker that is correct and rolls back.
func NewRollsBack(tb testing.TB, addr string) RollsBack { return RollsBack{NewRedisLock(tb, addr)} }

func (l RollsBack) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := over(ctx); err != nil {
		return false, err
	}
	ok, err := l.redisLock.Acquire(ctx, key, token, ttl)
	if err != nil && over(ctx) != nil {
		bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
		defer cancel()
		l.redisLock.Release(bg, key, token)
	}
	return ok, err
}
