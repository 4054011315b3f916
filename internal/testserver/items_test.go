package testserver_test

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemcachedItems(t *testing.T) {
	t.Parallel()
	addr := testserver.Memcached(t).Addr
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	for i := range 100 {
		_, err := fmt.Fprintf(conn, "set k%d 0 0 1\r\nx\r\n", i)
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 100))
		require.NoError(t, err)
	}
	var lookers sync.WaitGroup
	for range 4 {
		lookers.Go(func() {
			for range 20 {
				items, err := testserver.MemcachedItems(t.Context(), addr)
				if assert.NoError(t, err) && assert.Len(t, items, 100) {
					assert.Contains(t, items[0], " exp=-1 ")
				}
			}
		})
	}
	lookers.Wait()
}
