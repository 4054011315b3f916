package redisv9

import (
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// tunedTimeout is ample for a script that takes microseconds, and far less than the ttl of a lock.
const tunedTimeout = time.Second

// Tuned returns a copy of o with the settings that locks need, wherever o leaves the default of
// go-redis: contexts end requests (ContextTimeoutEnabled), nothing is sent or dialed a second time
// (MaxRetries -1, DialerRetries 1), and dials, reads, writes and the wait for a connection take at
// most a second each. Fields that are set keep their values. A nil o is one without any.
//
//	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: "localhost:6379"}))
//	l := redisv9.New(client)
//
// Give locks a client of their own: a lock must not wait behind large reads.
func Tuned(o *redis.Options) *redis.Options {
	t := new(redis.Options)
	if o != nil {
		*t = *o
	}
	t.ContextTimeoutEnabled = true
	if t.MaxRetries == 0 {
		t.MaxRetries = -1
	}
	for _, d := range []*time.Duration{&t.DialTimeout, &t.ReadTimeout, &t.WriteTimeout, &t.PoolTimeout} {
		if *d == 0 {
			*d = tunedTimeout
		}
	}
	// The oldest version that go.mod allows does not have the field.
	if dials := reflect.ValueOf(t).Elem().FieldByName("DialerRetries"); dials.IsValid() && dials.IsZero() {
		dials.SetInt(1)
	}
	return t
}
