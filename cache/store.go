package cache

import (
	"context"
	"time"

	"github.com/golockers/locker/singleflight/slots"
)

// Store keeps bytes, each for a time of its own that is positive and is rounded up. It is for authors
// of adapters; a [Cache] is what turns it into a cache. Its keys are complete, and its errors name
// neither operation nor key. Bytes that it returns are the caller's.
//
// Where a method takes spare, bytes that last for no longer than that count as absent: they are stale.
type Store interface {
	// Err returns why the Store can never work, such as a nil client, or nil. Then no other method
	// is called.
	Err() error

	Get(ctx context.Context, key string, spare time.Duration) (b []byte, ok bool, err error)

	// Set stores b for d, replacing what is there, and Add does so if Get would find none.
	Set(ctx context.Context, key string, b []byte, d time.Duration) error
	Add(ctx context.Context, key string, b []byte, d, spare time.Duration) (added bool, err error)

	Delete(ctx context.Context, key string) error

	// Look and Put are those of a slots.Keeper. A Slot's Left and Ahead do not count spare. Its TTL
	// is how long to keep its Value or Failure; if that is not positive, Put deletes the value.
	Look(ctx context.Context, spare time.Duration, all ...*slots.Slot[[]byte]) error
	Put(ctx context.Context, all ...*slots.Slot[[]byte]) error
}
