package several

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
)

// Transfers in all directions at once neither deadlock nor lose money.
func TestTransfer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	balance := map[string]*int{"a": new(int), "b": new(int), "c": new(int)}
	var running sync.WaitGroup
	for _, client := range replicas.Clients(t, 3) {
		l := redisv9.New(client)
		for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "a"}} {
			running.Go(func() {
				for range 10 {
					assert.NoError(t, Transfer(ctx, l, pair[0], pair[1], func(context.Context) error {
						from, to := *balance[pair[0]], *balance[pair[1]]
						time.Sleep(100 * time.Microsecond) // for others to interfere, if they can
						*balance[pair[0]], *balance[pair[1]] = from-1, to+1
						return nil
					}))
				}
			})
		}
	}
	running.Wait()
	assert.Equal(t, 30, *balance["a"])
	assert.Equal(t, -30, *balance["b"])
	assert.Equal(t, 0, *balance["c"])
}

func TestTransferToTheSameAccount(t *testing.T) {
	t.Parallel()
	ran := false
	err := Transfer(t.Context(), memory.New(), "a", "a", func(context.Context) error { ran = true; return nil })
	assert.NoError(t, err)
	assert.True(t, ran)
}
