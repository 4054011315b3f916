package backend

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// The timeout bounds the time without a connection, and the error then has the reason. On a connection
// the server may take longer to answer.
func TestEtcdTimeout(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	b, err := Open(Config{URL: "etcd://" + srv.Addr + "?timeout=400ms"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	require.Eventually(t, func() bool {
		_, err = b.Locker.Acquire(t.Context(), "k", "t", time.Minute)
		return err == nil
	}, time.Minute, time.Millisecond) // on a loaded machine the first connection may take longer

	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = b.Locker.Extend(ctx, "k", "t", time.Minute)
	require.Equal(t, context.DeadlineExceeded, err)

	srv.Stop()
	require.Eventually(t, func() bool { // the first requests may meet what is left of a connection
		_, err := b.Locker.Extend(t.Context(), "k", "t", time.Minute)
		return strings.Contains(err.Error(), "no connection within 400ms: ") && strings.Contains(err.Error(), "connection refused")
	}, time.Minute, time.Millisecond)
}
