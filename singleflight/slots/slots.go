// Package slots describes what a cache can do beyond storing values, for the Loader and the Fleet of
// package singleflight: it keeps the state of a key's load beside its value. It is for authors of
// caches. The caches of this module's adapters are Keepers.
package slots

import (
	"context"
	"time"
)

// Keeper is a cache that gives each load of a key a version, and keeps the failure of a load for a
// moment.
//
// A version is that of the key's present load, which ends when anything is stored for the key or its
// value is deleted, by whatever method and process. Loads that begin before that share it. So a value
// whose version is still the present one is not older than any change that was followed by a
// deletion.
//
// A Loader uses these methods in place of Get, Set and Add where it can. So a type that embeds a
// Keeper, and has a Get or Set of its own, needs a Look and Put of its own as well.
//
// An error of a method concerns the request, and the fields of the slots then mean nothing. An error
// in a slot concerns its key alone. It is [errors.ErrUnsupported] if the cache keeps no load for
// that key.
type Keeper[V any] interface {
	// Look looks at each slot's key, and sets the fields that say what there is.
	Look(ctx context.Context, slots ...*Slot[V]) error

	// Put ends the load of each slot's key with a value or a failure, if the slot's version is still
	// that of the present load, as one atomic step for each key. It sets Stored if it did.
	Put(ctx context.Context, slots ...*Slot[V]) error
}

// Slot is what one request asks and learns about a key. Make a new one for each Look, and use it for
// the Put that follows.
type Slot[V any] struct {
	Key string

	// Asked of Look. A load that failed less than Since ago counts, if there is no value. If there
	// is neither such a failure nor a value that lasts for Ahead, and Hold is not 0, a load begins,
	// unless one is under way. The cache may forget it after Hold.
	Since, Ahead, Hold time.Duration

	// What Look found: a value that Get would return, a failure, or the version of the load, which is
	// not 0. There are a value and a version if the value lasts for less than Ahead.
	Found   bool
	Value   V
	Left    time.Duration // how long Get returns Value; negative: for as long as it is there
	Failed  bool
	Failure string
	Age     time.Duration // of the failure
	Version uint64

	// Asked of Put, with Version: to store Value or, if Failed is true, Failure. TTL is how long
	// that lasts. With 0 the cache decides how long a value lasts, as in Set. If that is no time, or
	// TTL is negative, the load ends without a value: what is there is deleted.
	TTL    time.Duration
	Stored bool

	Err error
}
