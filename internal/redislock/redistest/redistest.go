// Package redistest is shared by the tests of the Redis adapters. They differ only in the client
// library of the Locker under test. Tests observe and disturb the Locker through go-redis.
package redistest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/waithook"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Locker is the Locker of an adapter.
type Locker interface {
	locker.Fencer
	locker.Watcher
	locker.Waiter
	locker.Inspector
	locker.Lister
}

// NewClient returns a client that is closed when the test ends.
func NewClient(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Operations returns the operations of a Locker that change something or listen, by name.
func Operations(l Locker) map[string]func(ctx context.Context, key, token string) error {
	return map[string]func(ctx context.Context, key, token string) error{
		"acquire": func(ctx context.Context, key, token string) error {
			_, err := l.Acquire(ctx, key, token, time.Minute)
			return err
		},
		"extend": func(ctx context.Context, key, token string) error {
			_, err := l.Extend(ctx, key, token, time.Minute)
			return err
		},
		"release": func(ctx context.Context, key, token string) error {
			_, err := l.Release(ctx, key, token)
			return err
		},
		"fence": func(ctx context.Context, key, token string) error {
			_, _, err := l.Fence(ctx, key, token)
			return err
		},
		"watch": func(ctx context.Context, key, _ string) error {
			_, err := l.Watch(ctx, key)
			return err
		},
		"wait": func(ctx context.Context, key, token string) error {
			_, err := l.Wait(ctx, key, token, time.Minute)
			return err
		},
	}
}

// Eventually polls until ok reports true.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	tb.Fatalf("not within 30 seconds: %s", what)
}

// Acquires fails the test unless token takes the lock of key.
func Acquires(tb testing.TB, l locker.Locker, key, token string, ttl time.Duration) {
	tb.Helper()
	ok, err := l.Acquire(context.Background(), key, token, ttl)
	require.NoError(tb, err)
	require.True(tb, ok)
}

// Releases fails the test unless token frees the lock of key.
func Releases(tb testing.TB, l locker.Locker, key, token string) {
	tb.Helper()
	ok, err := l.Release(context.Background(), key, token)
	require.NoError(tb, err)
	require.True(tb, ok)
}

// Mint returns a fencing number for a lock that token holds.
func Mint(tb testing.TB, l locker.Fencer, key, token string) uint64 {
	tb.Helper()
	number, ok, err := l.Fence(tb.Context(), key, token)
	require.NoError(tb, err)
	require.True(tb, ok)
	return number
}

// Inspect returns what Inspect reports.
func Inspect(tb testing.TB, l locker.Inspector, key string) locker.Info {
	tb.Helper()
	info, err := l.Inspect(tb.Context(), key)
	require.NoError(tb, err)
	return info
}

// List returns the tokens of the locks that List yields, and its errors, by key.
func List(tb testing.TB, l locker.Lister, prefix string) (held map[string]string, errs map[string]error) {
	tb.Helper()
	held, errs = map[string]string{}, map[string]error{}
	for info, err := range l.List(tb.Context(), prefix) {
		require.NotContains(tb, held, info.Key)
		require.NotContains(tb, errs, info.Key)
		if err != nil {
			errs[info.Key] = err
		} else {
			held[info.Key] = info.Token
			require.Positive(tb, info.TTL, info.Key)
		}
	}
	return held, errs
}

// QueueLength returns the number of processes that wait for the lock of key.
func QueueLength(admin redis.UniversalClient, key string) int64 {
	queue := redislock.NewNamespace("", true).Keys(key).Queue
	return admin.ZCard(context.Background(), queue).Val()
}

// Subscribers returns the number of a server's connections that have subscribed.
func Subscribers(tb testing.TB, admin *redis.Client) int {
	tb.Helper()
	list, err := admin.Do(context.Background(), "client", "list", "type", "pubsub").Text()
	require.NoError(tb, err)
	return strings.Count(list, "id=")
}

// Turn is the result of a Wait.
type Turn struct {
	Deadline time.Time
	Err      error
}

// Joins starts a Wait for key, and returns once its process is in the queue. No other of the process
// may wait for key.
func Joins(tb testing.TB, admin redis.UniversalClient, l locker.Waiter, ctx context.Context, key, token string,
	ttl time.Duration) <-chan Turn {
	tb.Helper()
	before := QueueLength(admin, key)
	done := make(chan Turn, 1)
	go func() {
		deadline, err := l.Wait(ctx, key, token, ttl)
		done <- Turn{deadline, err}
	}()
	Eventually(tb, "it is in the queue", func() bool {
		select {
		case r := <-done:
			tb.Fatalf("it did not wait: %v, %v", r.Deadline, r.Err)
		default:
		}
		return QueueLength(admin, key) > before
	})
	return done
}

// noting is a context that tells when a caller waits.
type noting struct {
	context.Context
	waits chan struct{}
	once  sync.Once
}

func (n *noting) NoteWaiting() { n.once.Do(func() { close(n.waits) }) }

func (n *noting) Value(key any) any {
	if key == any(waithook.Key{}) {
		return n
	}
	return n.Context.Value(key)
}

// Stands starts a Wait for key, behind others of its process, and returns once it stands in the line.
func Stands(tb testing.TB, l locker.Waiter, ctx context.Context, key, token string, ttl time.Duration) <-chan Turn {
	tb.Helper()
	n := &noting{Context: ctx, waits: make(chan struct{})}
	done := make(chan Turn, 1)
	go func() {
		deadline, err := l.Wait(n, key, token, ttl)
		done <- Turn{deadline, err}
	}()
	select {
	case <-n.waits:
	case r := <-done:
		tb.Fatalf("it did not wait: %v, %v", r.Deadline, r.Err)
	case <-time.After(30 * time.Second):
		tb.Fatal("it does not wait")
	}
	return done
}

// IsServed fails the test unless a waiter gets the lock, sooner than the minute that the locks of
// these tests last.
func IsServed(tb testing.TB, done <-chan Turn, why string) {
	tb.Helper()
	select {
	case r := <-done:
		require.NoError(tb, r.Err, why)
		require.True(tb, time.Now().Before(r.Deadline), why)
	case <-time.After(30 * time.Second):
		tb.Fatalf("not served within 30 seconds: %s", why)
	}
}

// IsWoken fails the test unless a wake-up comes.
func IsWoken(tb testing.TB, woken <-chan struct{}, why string) {
	tb.Helper()
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		tb.Fatalf("not woken within 30 seconds: %s", why)
	}
}
