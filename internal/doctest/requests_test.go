package doctest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/window"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// operation is a row of the table of requests. It takes a lock through the steps of its life, so the order
// of operations matters.
type operation struct {
	name string
	do   func(ctx context.Context, l locker.Locker, key string) (bool, error)
	want bool
}

func operations() []operation {
	acquire := func(token string) func(context.Context, locker.Locker, string) (bool, error) {
		return func(ctx context.Context, l locker.Locker, key string) (bool, error) {
			return l.Acquire(ctx, key, token, time.Hour)
		}
	}
	extend := func(token string) func(context.Context, locker.Locker, string) (bool, error) {
		return func(ctx context.Context, l locker.Locker, key string) (bool, error) {
			return l.Extend(ctx, key, token, time.Hour)
		}
	}
	release := func(token string) func(context.Context, locker.Locker, string) (bool, error) {
		return func(ctx context.Context, l locker.Locker, key string) (bool, error) {
			return l.Release(ctx, key, token)
		}
	}
	return []operation{
		{"acquire a free lock", acquire("holder"), true},
		{"acquire, refused", acquire("other"), false},
		{"acquire again, with the same token", acquire("holder"), true},
		{"extend", extend("holder"), true},
		{"extend, refused", extend("other"), false},
		{"release, refused", release("other"), false},
		{fence, func(ctx context.Context, l locker.Locker, key string) (bool, error) {
			_, ok, err := l.(locker.Fencer).Fence(ctx, key, "holder")
			return ok, err
		}, true},
		{"inspect", func(ctx context.Context, l locker.Locker, key string) (bool, error) {
			info, err := l.(locker.Inspector).Inspect(ctx, key)
			return info.Token == "holder", err
		}, true},
		{"release", release("holder"), true},
		{"count a call", countUnder(window.MaxN), true},
		{"count a call, denied", countUnder(1), false},
	}
}

// countUnder counts a call of a key that has been called before.
func countUnder(limit int64) func(context.Context, locker.Locker, string) (bool, error) {
	return func(ctx context.Context, l locker.Locker, _ string) (bool, error) {
		_, counted, err := l.(window.Enforcer).CountUnder(ctx, "calls", 1, window.Rule{Limit: limit, Per: window.MaxPer})
		return counted, err
	}
}

const (
	fence    = "mint a fencing number"
	takeOver = "acquire an expired lock"
	turn     = "take a turn in the queue, including the release before it"
	none     = "–" // the backend has no such operation
)

// columns are those of the table. Each function starts a server and returns what makes Lockers on it, with
// connections of their own.
func columns() map[string]func(t *testing.T) func() (locker.Locker, *atomic.Int64) {
	table := make(map[string]func(t *testing.T) func() (locker.Locker, *atomic.Int64))
	for name, b := range backends {
		table[name] = func(t *testing.T) func() (locker.Locker, *atomic.Int64) {
			addr := b.start(t).Addr
			return func() (locker.Locker, *atomic.Int64) { return b.locker(t, addr) }
		}
	}
	table["redisv9, Ring"] = func(t *testing.T) func() (locker.Locker, *atomic.Int64) {
		addr := testserver.Redis(t).Addr
		return func() (locker.Locker, *atomic.Int64) {
			count := new(atomic.Int64)
			client := redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"shard": addr}, Dialer: dialer(count), HeartbeatFrequency: time.Hour,
			})
			t.Cleanup(func() { assert.NoError(t, client.Close()) })
			return redisv9.New(client), count
		}
	}
	table["redisv9, Cluster"] = func(t *testing.T) func() (locker.Locker, *atomic.Int64) {
		addrs := testserver.RedisCluster(t, 3)
		return func() (locker.Locker, *atomic.Int64) {
			count := new(atomic.Int64)
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Dialer: dialer(count)})
			t.Cleanup(func() { assert.NoError(t, client.Close()) })
			return redisv9.New(client), count
		}
	}
	return table
}

// The table of requests in guarantees.md is what a server sees, and the row in the README follows from it.
// A count is the least of many, since the first use of a connection or a script takes more, and so does
// redigo if a request is a good deal slower than those before.
func TestRequests(t *testing.T) {
	t.Parallel()
	table := requestsTable(t)
	rows := []string{takeOver, turn}
	for _, o := range operations() {
		rows = append(rows, o.name)
	}
	assert.ElementsMatch(t, rows, slices.Collect(maps.Keys(table)), "the rows")
	for row, cells := range table {
		want := append(slices.Collect(maps.Keys(columns())), "memory")
		assert.ElementsMatch(t, want, slices.Collect(maps.Keys(cells)), "the columns of %q", row)
		assert.Equal(t, "0", cells["memory"], "%q: memory has no server", row)
	}
	for column, open := range columns() {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			lockers := open(t)
			l, count := lockers()
			measured := lifeOfALock(t, l, count)
			// On a busy machine, the client of a cluster may be sent to another node for some seconds.
			for range 5 {
				if !slices.ContainsFunc(operations(), func(o operation) bool { return measured[o.name] != table[o.name][column] }) {
					break
				}
				time.Sleep(time.Second)
				for name, n := range lifeOfALock(t, l, count) {
					measured[name] = min(measured[name], n) // of one digit
				}
			}
			measured[takeOver] = takingOver(t, l, count)
			measured[turn] = turnInTheQueue(t, lockers)
			for row, cells := range table {
				assert.Equal(t, measured[row], cells[column], row)
			}
		})
	}
}

// lifeOfALock returns how many requests each operation takes.
func lifeOfALock(t *testing.T, l locker.Locker, count *atomic.Int64) map[string]string {
	t.Helper()
	least := make(map[string]int64)
	measured := make(map[string]string)
	for round := range 60 {
		for _, o := range operations() {
			if _, fences := l.(locker.Fencer); o.name == fence && !fences {
				measured[o.name] = none
				continue
			}
			before := count.Load()
			ok, err := o.do(t.Context(), l, fmt.Sprint("key ", round))
			require.NoError(t, err, o.name)
			require.Equal(t, o.want, ok, o.name)
			n := count.Load() - before
			if was, seen := least[o.name]; !seen || n < was {
				least[o.name] = n
			}
			measured[o.name] = strconv.FormatInt(least[o.name], 10)
		}
	}
	return measured
}

// takingOver returns how many requests an attempt takes that gets a lock whose holder has vanished.
func takingOver(t *testing.T, l locker.Locker, count *atomic.Int64) string {
	t.Helper()
	const keys = 10
	ctx, least := t.Context(), int64(1000)
	for i := range keys {
		ok, err := l.Acquire(ctx, fmt.Sprint("expiring ", i), "vanished", time.Millisecond)
		require.NoError(t, err)
		require.True(t, ok)
	}
	for i := range keys {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			before := count.Load()
			ok, err := l.Acquire(ctx, fmt.Sprint("expiring ", i), "t", time.Hour)
			require.NoError(t, err)
			if ok {
				least = min(least, count.Load()-before)
				break
			}
			require.Less(t, time.Now(), end, "it does not expire")
		}
	}
	return strconv.FormatInt(least, 10)
}

// turnInTheQueue returns how many requests a turn takes, those of the waiter and of the holder before it. A
// waiter that waits long looks at the lock now and then, and one that comes late finds it free, so the most
// frequent number of many turns counts.
func turnInTheQueue(t *testing.T, open func() (locker.Locker, *atomic.Int64)) string {
	t.Helper()
	var waiters [2]locker.Waiter
	var counts [2]*atomic.Int64
	for i := range waiters {
		l, count := open()
		w, ok := l.(locker.Waiter)
		if !ok {
			return none
		}
		waiters[i], counts[i] = w, count
	}
	sum := func() int64 { return counts[0].Load() + counts[1].Load() }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := waiters[0].Wait(ctx, "queue", "0", time.Hour)
	require.NoError(t, err)
	turns := make(map[int64]int)
	for i := range 100 {
		holder, next := waiters[i%2], waiters[(i+1)%2]
		before := sum()
		waited := make(chan error, 1)
		go func() {
			_, err := next.Wait(ctx, "queue", fmt.Sprint(i+1), time.Hour)
			waited <- err
		}()
		for sum() == before { // until it has asked for a place in the queue
			time.Sleep(time.Millisecond)
		}
		ok, err := holder.Release(ctx, "queue", fmt.Sprint(i))
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, <-waited)
		turns[sum()-before]++
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(turns)), func(a, b int64) int { return turns[a] - turns[b] })
	return strconv.FormatInt(most, 10)
}

// requestsTable reads the section "Requests" of guarantees.md: a cell by row and column.
func requestsTable(t *testing.T) map[string]map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Requests\n")
	require.True(t, found, "no such section")
	section, _, _ = strings.Cut(section, "\n## ")
	var head []string
	table := make(map[string]map[string]string)
	for line := range strings.Lines(section) {
		cells, isRow := tableRow(line)
		switch {
		case !isRow || strings.HasPrefix(cells[0], "--"):
		case head == nil:
			head = cells
		default:
			require.Len(t, cells, len(head), line)
			row := make(map[string]string)
			for i, cell := range cells[1:] {
				row[head[i+1]] = cell
			}
			table[cells[0]] = row
		}
	}
	return table
}

// tableRow splits a line of a table, without the backticks in it.
func tableRow(line string) (cells []string, ok bool) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") {
		return nil, false
	}
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		cells = append(cells, strings.ReplaceAll(strings.TrimSpace(cell), "`", ""))
	}
	return cells, true
}

// The README gives four rows of the table in one column.
func TestRequestsInReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	table := requestsTable(t)
	column, found := -1, 0
	for line := range strings.Lines(string(page)) {
		cells, _ := tableRow(line)
		if column < 0 {
			column = slices.IndexFunc(cells, func(cell string) bool {
				return strings.Contains(cell, "acquire, be refused, extend, release")
			})
			continue
		}
		if len(cells) == 0 {
			break
		}
		backend := cells[0]
		if _, here := table["extend"][backend]; !here { // a module of its own, with a test of its own
			continue
		}
		found++
		var want []string
		for _, row := range []string{"acquire a free lock", "acquire, refused", "extend", "release"} {
			want = append(want, table[row][backend])
		}
		assert.Equal(t, strings.Join(want, ", "), cells[column], backend)
	}
	assert.Equal(t, 4, found, "memory, redisv9, redigo and memcache")
}
