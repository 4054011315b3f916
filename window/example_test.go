package window_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/window"
)

func Example() {
	ctx := context.Background()
	// In production: a Locker of redisv9, rueidis, redigo, postgres or memcache.
	limiter := window.New(memory.New(), 2, time.Hour)
	for range 3 {
		d, err := limiter.Allow(ctx, "user/42")
		if err != nil {
			log.Print(err) // the backend failed: the call passes
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

func ExampleLimiter_Wait() {
	ctx := context.Background()
	limiter := window.New(memory.New(), 1000, time.Second) // what a partner's API permits
	for range 3 {
		if err := limiter.Wait(ctx, "partner-api"); err != nil {
			log.Fatal(err)
		}
		fmt.Println("call")
	}
	// Output:
	// call
	// call
	// call
}

func ExampleMiddleware() {
	limiter := window.New(memory.New(), 100, time.Minute)
	limit := window.Middleware(limiter, func(r *http.Request) string {
		user, _, _ := r.BasicAuth() // checked by an outer handler
		return user
	})
	mux := http.NewServeMux()
	mux.Handle("/api/", limit(http.NotFoundHandler()))
}

// counter is a Counter that answers within 100 ms, and logs errors.
type counter struct{ window.Enforcer }

func (c counter) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (window.Counts, bool, error) {
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	counts, counted, err := c.Enforcer.CountUnder(short, key, n, r)
	if err != nil && ctx.Err() == nil { // otherwise the client has left
		log.Printf("a request is not limited: %v", err)
	}
	return counts, counted, err
}

// While the backend fails, requests pass. They do not wait for it, and its errors are logged.
func ExampleMiddleware_errors() {
	limiter := window.New(counter{memory.New()}, 100, time.Minute)
	limit := window.Middleware(limiter, func(r *http.Request) string { return r.PathValue("user") })
	mux := http.NewServeMux()
	mux.Handle("/users/{user}", limit(http.NotFoundHandler()))
}
