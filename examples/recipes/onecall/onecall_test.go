package onecall

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/examples/recipes/internal/replicas"
	"github.com/stretchr/testify/assert"
)

// 150 callers of three replicas cost one call, whether it succeeds or fails.
func TestGet(t *testing.T) {
	t.Parallel()
	clients := replicas.Clients(t, 3)
	for name, want := range map[string]error{"2026-10": nil, "2026-13": errors.New("no such month")} {
		var made atomic.Int64
		var callers sync.WaitGroup
		for _, client := range clients {
			reports := NewReports(client)
			t.Cleanup(func() { assert.NoError(t, reports.Close(context.Background())) })
			for range 50 {
				callers.Go(func() {
					report, err := Get(t.Context(), reports, name, func(context.Context) (Report, error) {
						made.Add(1)
						time.Sleep(500 * time.Millisecond)
						return Report{"the report of " + name}, want
					})
					if want != nil {
						assert.ErrorContains(t, err, want.Error())
						return
					}
					assert.NoError(t, err)
					assert.Equal(t, "the report of "+name, report.Text)
				})
			}
		}
		callers.Wait()
		assert.EqualValues(t, 1, made.Load())
	}
}
