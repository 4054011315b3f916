package redislock_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The scripts of the queue, by what processes send and hear.

// world is a queue for n locks of a server.
type world struct {
	tb     testing.TB
	client *redis.Client
	keys   []string
	subs   map[string]*redis.PubSub
}

func newWorld(tb testing.TB, n int) *world {
	w := &world{tb: tb, client: start(tb), subs: map[string]*redis.PubSub{}}
	k := redislock.NewNamespace("", true).Keys("k")
	w.keys = []string{k.Queue, k.Lock}
	for i := 1; i < n; i++ {
		w.keys = append(w.keys, k.Lock+strconv.Itoa(i+1))
	}
	return w
}

func (w *world) run(script redislock.Script, args ...any) any {
	w.tb.Helper()
	reply, err := w.client.Eval(context.Background(), script.Text, w.keys, args...).Result()
	require.NoError(w.tb, err)
	return reply
}

// listens makes processes listen.
func (w *world) listens(processes ...string) {
	for _, p := range processes {
		w.subs[p] = w.client.Subscribe(context.Background(), "!wait:"+p)
		_, err := w.subs[p].Receive(context.Background())
		require.NoError(w.tb, err)
	}
}

// dies ends a process's connection.
func (w *world) dies(p string) {
	require.NoError(w.tb, w.subs[p].Close())
	delete(w.subs, p)
	for n := int64(1); n > 0; {
		n = w.client.PubSubNumSub(context.Background(), "!wait:"+p).Val()["!wait:"+p]
	}
}

// hears returns the messages to a process, but for its ID.
func (w *world) hears(p string) (messages []string) {
	w.tb.Helper()
	require.NoError(w.tb, w.client.Publish(context.Background(), "!wait:"+p, "the end").Err())
	for {
		m, err := w.subs[p].ReceiveMessage(context.Background())
		require.NoError(w.tb, err)
		if m.Payload == "the end" {
			return messages
		}
		if _, what, ok := strings.Cut(m.Payload, " "); ok {
			messages = append(messages, what)
		}
	}
}

type place struct {
	number, left, rank int64
	ticket             string
	listeners          int64
}

func entryOf(p string, permits int) string { return fmt.Sprintf("!wait:%s 1.%d.k", p, permits) }

// looks makes a process look, with a place that it had before or "". counts means that the server may
// count it.
func (w *world) looks(p, ticket string, counts bool, following ...string) place {
	w.tb.Helper()
	how, next, permits := 1, "", 0
	if counts {
		how += 16
	}
	if len(following) > 0 {
		next = following[0]
	}
	if len(w.keys) > 2 {
		permits = len(w.keys) - 1
	}
	r := w.run(redislock.Look, p, 60_000, entryOf(p, permits), ticket, how, next, "1").([]any)
	require.Len(w.tb, r, 5)
	return place{r[0].(int64), r[1].(int64), r[2].(int64), r[3].(string), r[4].(int64)}
}

func (w *world) acquires(token string) int64 {
	w.tb.Helper()
	return w.run(redislock.Look, token, 60_000).([]any)[0].(int64)
}

func (w *world) value(i int) string { return w.client.Get(context.Background(), w.keys[i]).Val() }

func (w *world) queue() (processes []string) {
	for _, e := range w.client.ZRange(context.Background(), w.keys[0], 0, -1).Val() {
		processes = append(processes, strings.TrimPrefix(strings.Fields(e)[0], "!wait:"))
	}
	return processes
}

func TestOffer(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a", "b", "c", "d")
	require.EqualValues(t, 1, w.acquires("holder"))
	for i, p := range []string{"a", "b", "c", "d"} {
		at := w.looks(p, "", true)
		assert.EqualValues(t, i, at.rank)
		assert.EqualValues(t, 1, at.listeners)
		assert.Greater(t, at.left, int64(50_000))
	}
	assert.EqualValues(t, 11, w.run(redislock.Release, "holder"), "one second to take it")
	assert.Equal(t, "offer:"+entryOf("a", 0), w.value(1))
	assert.Equal(t, []string{"offer"}, w.hears("a"))
	assert.Equal(t, []string{"1025"}, w.hears("b"), "the first two are told when the offer ends")
	assert.Equal(t, []string{"1050"}, w.hears("c"))
	assert.Empty(t, w.hears("d"))
	assert.EqualValues(t, 0, w.acquires("other"))
	assert.EqualValues(t, 0, w.looks("b", "", true).number, "it is offered to another")
	assert.EqualValues(t, 0, w.run(redislock.Release, "a"), "it has not taken it")
	assert.EqualValues(t, 0, w.run(redislock.Extend, "a", 1000))
	took := w.looks("a", "", true, "!wait:a 2.0.k")
	assert.EqualValues(t, 1, took.number)
	assert.EqualValues(t, 3, took.rank, "the next one of its process is the last")
	assert.Equal(t, "a", w.value(1))
	assert.Equal(t, []string{"b", "c", "d", "a"}, w.queue())
	assert.EqualValues(t, 1, w.looks("a", "", true, "!wait:a 2.0.k").number, "a copy of the request")
	assert.Equal(t, []string{"b", "c", "d", "a"}, w.queue())
}

// What is offered to an entry whose waiter has gone is passed on, and what it no longer has is left
// alone.
func TestPass(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a", "b")
	w.acquires("holder")
	w.looks("a", "", true)
	w.looks("b", "", true)
	pass := func(p string) any { return w.run(redislock.Release, "any", "", entryOf(p, 0)) }
	assert.EqualValues(t, 0, pass("x"))
	w.run(redislock.Release, "holder")
	assert.EqualValues(t, 11, pass("a"))
	assert.Equal(t, []string{"offer"}, w.hears("b")[1:])
	assert.EqualValues(t, 0, pass("a"), "a second time")
	assert.EqualValues(t, 1, w.looks("b", "", true).number)
	assert.EqualValues(t, 0, pass("b"), "it has taken it")
	assert.Equal(t, "b", w.value(1))
}

// Offers are made again whenever a look refreshes how an entry is served.
func TestServedAsItWasLastSeen(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a", "b", "c")
	w.acquires("holder")
	w.looks("a", "", true)
	w.looks("b", "", true)
	w.looks("c", "", false) // on a Cluster, say
	w.dies("a")
	w.dies("c")
	w.looks("c", "", false)
	assert.EqualValues(t, 11, w.run(redislock.Release, "holder"))
	assert.Equal(t, []string{"offer"}, w.hears("b"), "nobody has heard the first offer")
	assert.EqualValues(t, 1, w.looks("b", "", true).number)
	assert.EqualValues(t, 11, w.run(redislock.Release, "b"), "it may hear although it is not counted")
	assert.Equal(t, "offer:"+entryOf("c", 0), w.value(1))
	w.run(redislock.Release, "any", "", entryOf("c", 0))
	assert.Empty(t, w.client.Keys(t.Context(), "*").Val())
}

// Those before an entry that have not come are told, and come back to their places. One that has no
// place offers the lock instead.
func TestRoll(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a", "b", "c", "d")
	w.acquires("holder")
	tickets := map[string]string{}
	for _, p := range []string{"a", "b", "c"} {
		tickets[p] = w.looks(p, "", true).ticket
	}
	end := func() { require.NoError(t, w.client.Del(t.Context(), w.keys[1]).Err()) }
	end()
	assert.EqualValues(t, 1, w.looks("c", "", true).number)
	assert.Equal(t, []string{"0"}, w.hears("a"))
	assert.Equal(t, []string{"1"}, w.hears("b"))
	assert.Empty(t, w.queue())
	assert.EqualValues(t, 0, w.looks("d", "", true).number)
	assert.EqualValues(t, 0, w.looks("b", tickets["b"], true).rank)
	assert.EqualValues(t, 0, w.looks("a", tickets["a"], true).rank)
	assert.Equal(t, []string{"a", "b", "d"}, w.queue())
	end()
	assert.EqualValues(t, 0, w.acquires("other"), "others wait")
	assert.Equal(t, []string{"offer"}, w.hears("a"))
	end()
	at := w.looks("c", "", true)
	assert.EqualValues(t, 0, at.number)
	assert.LessOrEqual(t, at.left, int64(1000))
	assert.Equal(t, "offer", w.hears("b")[1])
	assert.Equal(t, []string{"d", "c"}, w.queue())
}

// The first in the queue is told when what it has to know changes.
func TestToldInTime(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a", "b", "c", "d")
	w.acquires("holder")
	for _, p := range []string{"a", "b", "c", "d"} {
		w.looks(p, "", true)
	}
	w.run(redislock.Extend, "holder", 70_000)
	assert.Empty(t, w.hears("a"))
	w.run(redislock.Extend, "holder", 500)
	assert.Equal(t, []string{"500"}, w.hears("a"), "the lock was shortened")
	assert.Equal(t, []string{"525"}, w.hears("b"))
	w.run(redislock.Extend, "holder", 60_000)
	leaves := func(p string) { w.run(redislock.Release, p, "", entryOf(p, 0)) }
	leaves("c")
	assert.Empty(t, w.hears("b"))
	leaves("a")
	assert.Len(t, w.hears("b"), 1, "it is the first now")
	require.NoError(t, w.client.Del(t.Context(), w.keys[1]).Err())
	assert.EqualValues(t, 0, w.run(redislock.Release, "holder"))
	assert.Equal(t, []string{"0"}, w.hears("b"), "the lock was lost")
}

// A script passes over a thousand of the dead. Then the next ones look.
func TestWorkOfAScriptIsBounded(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("dead", "alive")
	w.acquires("holder")
	queue := make([]redis.Z, 2500)
	score := func(i int) float64 { return float64((1000+i)*32 + 17) }
	for i := range queue {
		queue[i] = redis.Z{Score: score(i), Member: fmt.Sprint("!wait:dead ", i, ".0.k")}
	}
	require.NoError(t, w.client.ZAdd(t.Context(), w.keys[0], queue...).Err())
	require.NoError(t, w.client.ZAdd(t.Context(), w.keys[0], redis.Z{Score: score(1030) + 0.5, Member: entryOf("alive", 0)}).Err())
	w.dies("dead")
	assert.EqualValues(t, 1, w.run(redislock.Release, "holder"))
	assert.Len(t, w.queue(), 1501)
	assert.Len(t, w.hears("alive"), 1, "it is told that the lock is free")
	assert.EqualValues(t, 1, w.looks("alive", "", true).number)
}

// A user who may not publish frees the lock and offers it to nobody. Waiters know that there are
// no messages.
func TestWithoutPublishing(t *testing.T) {
	w := newWorld(t, 1)
	w.listens("a")
	require.NoError(t, w.client.Do(t.Context(), "ACL", "SETUSER", "mute", "on", "nopass", "+@all", "-publish", "~*", "&*").Err())
	mute := redis.NewClient(&redis.Options{Addr: w.client.Options().Addr, Username: "mute", Password: "x"})
	t.Cleanup(func() { _ = mute.Close() })
	all := w.client
	w.acquires("holder")
	assert.EqualValues(t, 1, w.looks("a", "", true).listeners)
	w.client = mute
	assert.EqualValues(t, -2, w.looks("b", "", true).listeners)
	assert.EqualValues(t, 1, w.run(redislock.Release, "holder"))
	assert.Empty(t, w.value(1))
	assert.Equal(t, []string{"a", "b"}, w.queue())
	assert.EqualValues(t, 1, w.looks("a", "", true).number)
	w.client = all
}

// As many permits as are free are offered, and none whose number is above the waiter's N.
func TestOfferedPermits(t *testing.T) {
	w := newWorld(t, 3)
	w.listens("a", "b", "c")
	for i := range 3 {
		require.EqualValues(t, i+1, w.acquires(fmt.Sprint("holder", i)))
	}
	for _, p := range []string{"a", "b"} {
		assert.EqualValues(t, 0, w.looks(p, "", true).number)
	}
	w.run(redislock.Look, "c", 60_000, entryOf("c", 2), "", 17, "", "")
	assert.EqualValues(t, 11, w.run(redislock.Release, "holder2"))
	assert.EqualValues(t, 11, w.run(redislock.Release, "holder0"))
	assert.EqualValues(t, 3, w.looks("a", "", true).number)
	assert.EqualValues(t, 1, w.looks("b", "", true).number)
	assert.EqualValues(t, 3, w.run(redislock.Extend, "a", 1000))
	assert.EqualValues(t, 1, w.run(redislock.Release, "a"), "it counts only two")
	assert.Equal(t, []string{"c"}, w.queue())
	assert.EqualValues(t, 11, w.run(redislock.Release, "holder1"))
	assert.Equal(t, "offer:"+entryOf("c", 2), w.value(2))
	require.NoError(t, w.client.Del(t.Context(), w.keys[1:]...).Err())
	assert.EqualValues(t, 1, w.acquires("x"))
	assert.EqualValues(t, 2, w.acquires("y"))
	assert.EqualValues(t, 1, w.acquires("x"), "its own")
	keys := []string{w.keys[0], "list"}
	require.NoError(t, w.client.RPush(t.Context(), "list", "x").Err())
	require.ErrorContains(t, w.client.Eval(t.Context(), redislock.Look.Text, keys, "t", 1000).Err(), "WRONGTYPE")
}
