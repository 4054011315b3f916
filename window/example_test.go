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

// While the backend fails, requests pass, after no more than a tenth of a second, and its errors
// are logged.
func ExampleWithErrorFunc() {
	limiter := window.New(memory.New(), 100, time.Minute,
		window.WithTimeout(100*time.Millisecond),
		window.WithErrorFunc(func(r *http.Request, err error) {
			log.Printf("%s %s is not limited: %v", r.Method, r.URL.Path, err)
		}))
	limit := window.Middleware(limiter, func(r *http.Request) string { return r.PathValue("user") })
	mux := http.NewServeMux()
	mux.Handle("/users/{user}", limit(http.NotFoundHandler()))
}
