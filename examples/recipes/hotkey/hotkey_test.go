package hotkey

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeTable stands in for the database.
type fakeTable struct {
	mu      sync.Mutex
	names   map[string]string
	queries map[string]int
	hangs   bool // until the query's context ends
}

func (f *fakeTable) Query(ctx context.Context, id string) (*User, error) {
	f.mu.Lock()
	f.queries[id]++
	name, ok := f.names[id]
	hangs := f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(20 * time.Millisecond)
	if !ok {
		return nil, nil
	}
	return &User{id, name}, nil
}

func (f *fakeTable) Rename(_ context.Context, id, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names[id] = name
	return nil
}

// count returns how often id has been queried.
func (f *fakeTable) count(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queries[id]
}

func (f *fakeTable) hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs = true
}

// fleet is two servers on one table and one Redis.
type fleet struct {
	table *fakeTable
	redis redis.UniversalClient
	urls  []string
	stop  func() // returns when they have ended
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	clients := replicas.Clients(t, 2)
	f := &fleet{redis: clients[0], table: &fakeTable{
		names: map[string]string{"42": "Ann"}, queries: make(map[string]int)}}
	ctx, cancel := context.WithCancel(t.Context())
	var servers sync.WaitGroup
	for _, client := range clients {
		users := NewUsers(redisv9.New(client), client, f.table)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		f.urls = append(f.urls, "http://"+listener.Addr().String()+"/users/")
		servers.Go(func() { assert.NoError(t, Serve(ctx, listener, Handler(users, f.table), users)) })
	}
	f.stop = sync.OnceFunc(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		servers.Wait()
	})
	t.Cleanup(f.stop)
	return f
}

// get asks a server for a user and returns the name.
func (f *fleet) get(t *testing.T, server int, id string) (code int, name string) {
	t.Helper()
	response, err := http.Get(f.urls[server] + id)
	if !assert.NoError(t, err) {
		return 0, ""
	}
	defer response.Body.Close()
	var user User
	body, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	if response.StatusCode == http.StatusOK {
		assert.NoError(t, json.Unmarshal(body, &user))
	}
	return response.StatusCode, user.Name
}

func (f *fleet) rename(t *testing.T, server int, id, name string) {
	t.Helper()
	form := strings.NewReader(url.Values{"name": {name}}.Encode())
	request, err := http.NewRequestWithContext(t.Context(), "PUT", f.urls[server]+id, form)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// expire makes the value of a user stale.
func (f *fleet) expire(t *testing.T, id string) {
	t.Helper()
	expired, err := f.redis.PExpire(t.Context(), "cache:user/"+id, 5*time.Minute).Result()
	require.NoError(t, err)
	require.True(t, expired)
}

// 500 clients that come at once cost one query.
func TestHotKey(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	var clients sync.WaitGroup
	for i := range 500 {
		clients.Go(func() {
			code, name := f.get(t, i%2, "42")
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, "Ann", name)
		})
	}
	clients.Wait()
	assert.Equal(t, 1, f.table.count("42"))
}

// After a change each server has the new value, also of a user that did not exist.
func TestUpdate(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for i, name := range []string{"Anna", "Anne", "Hannah"} {
		for server := range f.urls {
			code, _ := f.get(t, server, "42")
			assert.Equal(t, http.StatusOK, code)
		}
		f.rename(t, i%2, "42", name)
		for server := range f.urls {
			_, got := f.get(t, server, "42")
			assert.Equal(t, name, got)
		}
	}
	for range 5 {
		for server := range f.urls {
			code, _ := f.get(t, server, "43")
			assert.Equal(t, http.StatusNotFound, code)
		}
	}
	assert.Equal(t, 1, f.table.count("43"))
	f.rename(t, 0, "43", "Bob")
	for server := range f.urls {
		_, got := f.get(t, server, "43")
		assert.Equal(t, "Bob", got)
	}
}

// While one server refreshes a stale value, clients get it at once. Servers that end then leave no lock.
func TestStaleAndShutdown(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.get(t, 0, "42")
	require.Eventually(t, func() bool { // it is stored behind the client
		return f.redis.Exists(t.Context(), "cache:user/42").Val() == 1
	}, 30*time.Second, time.Millisecond)
	f.table.hang()
	f.expire(t, "42")
	getsIt := func(server int) {
		code, name := f.get(t, server, "42")
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, "Ann", name)
	}
	for i := range 20 {
		getsIt(i % 2)
	}
	require.Eventually(t, func() bool {
		getsIt(0) // a refresh that got no lock in time begins again
		return f.table.count("42") == 2
	}, 30*time.Second, 10*time.Millisecond)
	locks, err := f.redis.Keys(t.Context(), "locker:*").Result()
	require.NoError(t, err)
	assert.Equal(t, []string{"locker:user/42"}, locks)

	f.stop()
	assert.Equal(t, 2, f.table.count("42"), "queries")
	locks, err = f.redis.Keys(context.Background(), "locker:*").Result()
	require.NoError(t, err)
	assert.Empty(t, locks)
}
