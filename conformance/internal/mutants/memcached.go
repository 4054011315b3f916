package mutants

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
)

var plainKey = regexp.MustCompile(`^conformance/[A-Z0-9]+$`)

// memcachedGetThenDelete is what every lock on memcached but this library's does, since memcached
// is said to have no compare-and-delete.
type memcachedGetThenDelete struct {
	*memcache.Locker
	client *gomemcache.Client
}

func (l memcachedGetThenDelete) Release(ctx context.Context, key, token string) (bool, error) {
	if !plainKey.MatchString(key) {
		return l.Locker.Release(ctx, key, token) // with mapped names
	}
	if _, near := ctx.Deadline(); ctx.Err() != nil || !near {
		return l.Locker.Release(ctx, key, token) // which honors contexts
	}
	item, err := l.client.Get("locker:" + key)
	if errors.Is(err, gomemcache.ErrCacheMiss) || err == nil && string(item.Value) != token {
		return false, nil
	}
	if err == nil {
		err = l.client.Delete("locker:" + key)
	}
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return false, nil
	}
	return err == nil, err
}

func onMemcached(tb testing.TB) harness.Config {
	return harness.Config{
		Addr:        testserver.Memcached(tb).Addr,
		Granularity: 3 * time.Second,
		New: func(tb testing.TB, addr string) locker.Locker {
			client := gomemcache.New(addr)
			client.Timeout = 3 * time.Second
			tb.Cleanup(func() { client.Close() })
			return memcachedGetThenDelete{memcache.New(client), client}
		},
	}
}
