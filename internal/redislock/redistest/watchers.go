package redistest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/golockers/locker"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// WatchersOverBreak checks that 4,000 watchers of keys with that many bytes are live again after
// their connection has broken.
func WatchersOverBreak(t *testing.T, admin *redis.Client, l locker.Watcher, size int) {
	t.Helper()
	const n = 4000
	var all sync.WaitGroup
	errs := make(chan error, n)
	for part := range 100 {
		all.Go(func() {
			for i := range n / 100 {
				_, err := l.Watch(t.Context(), fmt.Sprint(part, " ", i, strings.Repeat("x", size)))
				errs <- err
			}
		})
	}
	all.Wait()
	for range n {
		require.NoError(t, <-errs)
	}
	subscribed := fmt.Sprintf(" sub=%d ", n)
	live := func() bool {
		list, err := admin.Do(t.Context(), "client", "list", "type", "pubsub").Text()
		return err == nil && strings.Contains(list, subscribed)
	}
	Eventually(t, "all are live", live)
	require.NoError(t, admin.ClientKillByFilter(t.Context(), "type", "pubsub").Err())
	Eventually(t, "all are live again", live)
}
