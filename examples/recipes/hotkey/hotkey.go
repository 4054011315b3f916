// Package hotkey serves a table through a cache in Redis.
package hotkey

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
)

// User is a row. A nil *User means that there is no such row, which is cached as well.
type User struct{ ID, Name string }

// Table is the table with the users, in a database.
type Table interface {
	Query(ctx context.Context, id string) (*User, error)
	Rename(ctx context.Context, id, name string) error
}

// NewUsers returns the cached table.
func NewUsers(l locker.Locker, client redis.UniversalClient, table Table) *singleflight.Loader[*User] {
	cache := redisv9.NewCache(client, redisv9.CacheConfig[*User]{TTL: time.Minute, Stale: 10 * time.Minute})
	return singleflight.NewLoader(l, cache, table.Query, singleflight.WithKeyPrefix("user/"))
}

// Handler serves the users.
func Handler(users *singleflight.Loader[*User], table Table) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", func(w http.ResponseWriter, r *http.Request) {
		switch user, err := users.Load(r.Context(), r.PathValue("id")); {
		case err != nil:
			http.Error(w, "no answer", http.StatusServiceUnavailable)
		case user == nil:
			http.NotFound(w, r)
		default:
			_ = json.NewEncoder(w).Encode(user)
		}
	})
	mux.HandleFunc("PUT /users/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, name := r.PathValue("id"), r.FormValue("name")
		err := users.Update(r.Context(), id, func(ctx context.Context) error {
			return table.Rename(ctx, id, name)
		})
		if err != nil {
			http.Error(w, "not renamed, or the old name may still be served", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// Serve serves until ctx ends, and then finishes what has begun.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, users *singleflight.Loader[*User]) error {
	server, ended := &http.Server{Handler: handler}, make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(grace)
	return errors.Join(err, users.Close(grace))
}
