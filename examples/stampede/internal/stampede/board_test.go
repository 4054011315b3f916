package stampede

import (
	"context"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A round begins only if a page is there to see it.
func TestReady(t *testing.T) {
	assert.False(t, (&view{Playing: true}).ready())
	assert.False(t, (&view{another: true}).ready())
	assert.False(t, (&view{pages: 1}).ready())
	assert.True(t, (&view{pages: 2, Playing: true}).ready())
	assert.True(t, (&view{pages: 1, another: true}).ready())
}

// A page counts as open until its stream ends, and gets the view when it connects.
func TestOpenPages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), programtest.Long)
	defer cancel()
	b := newBoard(settings{processes: 1, goroutines: 1})
	server := httptest.NewServer(b.handler())
	defer server.Close()
	seen := make(chan struct{})
	var done [2]chan struct{}
	var stop [2]func()
	for i := range done {
		page, leave := context.WithCancel(ctx)
		defer leave()
		stop[i], done[i] = leave, make(chan struct{})
		go func() {
			defer close(done[i])
			request := httptest.NewRequestWithContext(page, "GET", server.URL+"/events", nil)
			request.RequestURI = "" // of a client
			response, err := server.Client().Do(request)
			if assert.NoError(t, err) {
				defer response.Body.Close()
				_, err = response.Body.Read(make([]byte, 1))
				assert.NoError(t, err)
				seen <- struct{}{}
				<-page.Done()
			}
		}()
	}
	<-seen
	<-seen
	for left := 2; left > 0; left-- {
		require.NoError(t, b.await(ctx, func(v *view) bool { return v.pages == left }))
		stop[left-1]()
		<-done[left-1]
	}
	require.NoError(t, b.await(ctx, func(v *view) bool { return v.pages == 0 }))
}

// History forgets the oldest rounds, and a round that failed is not in it.
func TestHistory(t *testing.T) {
	s := strategyView{Running: true, Processes: []sample{{Waiting: 3, Loading: 1, Queries: 2}}}
	s.finish(round{}, net.ErrClosed)
	assert.Equal(t, strategyView{Processes: []sample{{Queries: 2}}}, s)
	for i := range historyLength + 5 {
		s.finish(round{queries: int64(i), byProcess: []int64{int64(i)}}, nil)
	}
	require.Len(t, s.History, historyLength)
	assert.EqualValues(t, 5, s.History[0].Queries)
	assert.EqualValues(t, historyLength+4, s.Last.Queries)
	assert.EqualValues(t, historyLength+4, s.Processes[0].Queries)
}
