package listpage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/stretchr/testify/assert"
)

// Two servers that show the same page at the same time load each item once. Items that do not exist
// are left out.
func TestPage(t *testing.T) {
	t.Parallel()
	var queries, queried atomic.Int64
	query := func(_ context.Context, ids []string) (map[string]Item, error) {
		queries.Add(1)
		queried.Add(int64(len(ids)))
		time.Sleep(100 * time.Millisecond)
		items := make(map[string]Item)
		for _, id := range ids {
			if !strings.HasPrefix(id, "gone") {
				items[id] = Item{"item " + id}
			}
		}
		return items, nil
	}
	var ids []string
	for i := range 200 {
		ids = append(ids, fmt.Sprint(i))
	}
	ids = append(ids, "gone")
	var servers sync.WaitGroup
	for _, client := range replicas.Clients(t, 2) {
		items := NewItems(client, query)
		t.Cleanup(func() { assert.NoError(t, items.Close(context.Background())) })
		servers.Go(func() {
			page, err := Page(t.Context(), items, ids)
			assert.NoError(t, err)
			if assert.Len(t, page, 200) {
				assert.Equal(t, Item{"item 7"}, page[7])
			}
		})
	}
	servers.Wait()
	assert.LessOrEqual(t, queries.Load(), int64(3))
	assert.LessOrEqual(t, queried.Load(), int64(202))
}
