package rueidis_test

import "github.com/golockers/locker/internal/redislock/redistest"

// The helpers that the tests of the Redis adapters share.
var (
	eventually  = redistest.Eventually
	acquires    = redistest.Acquires
	releases    = redistest.Releases
	mint        = redistest.Mint
	inspect     = redistest.Inspect
	list        = redistest.List
	joins       = redistest.Joins
	stands      = redistest.Stands
	isServed    = redistest.IsServed
	isWoken     = redistest.IsWoken
	queueLength = redistest.QueueLength
	subscribers = redistest.Subscribers
	newAdmin    = redistest.NewClient
)
