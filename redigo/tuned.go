package redigo

import (
	"reflect"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Tuned returns a new pool that is made as p and has the settings that locks need, wherever p leaves
// the default of redigo: it keeps 64 idle connections (MaxIdle), where redigo keeps none and opens one
// for each call, and closes those that are idle for five minutes (IdleTimeout). Fields that are set keep
// their values. A nil p is one without any. Connections of p are not in the new pool.
//
//	pool := redigo.Tuned(&redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
//		return redis.DialContext(ctx, "tcp", "localhost:6379", redis.DialConnectTimeout(time.Second))
//	}})
//	l := redigo.New(pool)
//
// The timeout of a dial belongs to the function that dials. Give locks a pool of their own: a lock must
// not wait behind large reads.
func Tuned(p *redis.Pool) *redis.Pool {
	t := new(redis.Pool)
	if p != nil {
		// A pool has a mutex, so it cannot be copied as a whole.
		from, to := reflect.ValueOf(p).Elem(), reflect.ValueOf(t).Elem()
		for i := range to.NumField() {
			if to.Type().Field(i).IsExported() {
				to.Field(i).Set(from.Field(i))
			}
		}
	}
	if t.MaxIdle == 0 {
		t.MaxIdle = 64
	}
	if t.IdleTimeout == 0 {
		t.IdleTimeout = 5 * time.Minute
	}
	return t
}
