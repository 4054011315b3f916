package redisv9

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

const defaultTimeout = redislock.DefaultTimeout

// limits describes a client's timeouts.
type limits struct {
	io        time.Duration // how long a request may go without an answer
	inline    time.Duration // contexts that end sooner than this need a goroutine; 0: the client honors them
	unbounded bool          // the client has no timeout, and cannot be given one
}

// limitsOfClient also returns a client that has timeouts: c itself if it has them.
func limitsOfClient(c *redis.Client) (*redis.Client, limits) {
	o := c.Options()
	read, write := o.ReadTimeout, o.WriteTimeout
	if read <= 0 || write <= 0 {
		c, read, write = c.WithTimeout(defaultTimeout), defaultTimeout, defaultTimeout
	}
	return c, newLimits(read, write, relaxedTimeout(o), honorsContexts(o.ContextTimeoutEnabled, o.TLSConfig != nil))
}

func limitsOfRing(o *redis.RingOptions) limits {
	// The options are as the user gave them, and each shard's client completes them.
	shard := complete(&redis.Options{ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout})
	return newLimits(shard.ReadTimeout, shard.WriteTimeout, relaxedTimeout(shard),
		honorsContexts(o.ContextTimeoutEnabled, o.TLSConfig != nil))
}

func limitsOfCluster(o *redis.ClusterOptions) limits {
	// The options are complete. A 0 was -1, which some versions of go-redis give to the nodes'
	// clients as it is, and others as their default.
	return newLimits(o.ReadTimeout, o.WriteTimeout, relaxedTimeout(o),
		honorsContexts(o.ContextTimeoutEnabled, o.TLSConfig != nil))
}

// limitsOfUnknown are the limits of a client that wraps one of go-redis's with default options.
func limitsOfUnknown() limits {
	o := complete(new(redis.Options))
	return newLimits(o.ReadTimeout, o.WriteTimeout, relaxedTimeout(o), false)
}

func newLimits(read, write, relaxed time.Duration, honorsContexts bool) limits {
	io := max(read, write)
	switch {
	case read <= 0 || write <= 0:
		return limits{io: defaultTimeout, inline: inflight.Never, unbounded: true}
	case honorsContexts:
		return limits{io: io}
	default:
		return limits{io: io, inline: max(io, relaxed)}
	}
}

// honorsContexts reports whether a client's calls end with their contexts. A TLS dial does not.
func honorsContexts(enabled, tls bool) bool { return enabled && !tls }

// complete returns what go-redis makes of o: its defaults differ from version to version.
func complete(o *redis.Options) *redis.Options {
	c := redis.NewClient(o)
	defer c.Close()
	return c.Options()
}

// relaxedTimeout is the timeout of a connection on which the server has announced maintenance,
// which newer versions of go-redis make longer, or 0 where they do not. Whether they do for this
// client is not asked: go-redis changes that while the client connects. The oldest version that
// go.mod allows does not have the field.
func relaxedTimeout(options any) time.Duration {
	config := reflect.ValueOf(options).Elem().FieldByName("MaintNotificationsConfig")
	if !config.IsValid() || config.Kind() != reflect.Pointer || config.IsNil() {
		return 0
	}
	relaxed := config.Elem().FieldByName("RelaxedTimeout")
	if !relaxed.IsValid() {
		return 0
	}
	d, _ := relaxed.Interface().(time.Duration)
	return d
}

// sharesPool reports whether connections with subscriptions count against a pool of this size, and
// have no room beside it, as in older versions of go-redis. Then waiters poll.
func sharesPool(size, maxActive int) bool {
	if maxActive <= 0 || maxActive > size {
		return false
	}
	base := reflect.TypeFor[redis.Client]().Field(0).Type
	if base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	if base.Kind() != reflect.Struct {
		return false
	}
	_, isApart := base.FieldByName("pubSubPool")
	return !isApart
}

var errSharesPool = fmt.Errorf("MaxActiveConns leaves no room for a subscription beside the pool: %w", errors.ErrUnsupported)

var errAutoPipeliner = misuse.New(
	"the client is an AutoPipeliner, which ignores contexts: pass the client that it was made from")

// isAutoPipeliner reports whether client is go-redis's AutoPipeliner or embeds one. Its commands do
// not end with their contexts, are sent for callers that have left, and are repeated as a batch. It
// is recognized by its methods, since the oldest version that go.mod allows does not have the type.
func isAutoPipeliner(client redis.UniversalClient) bool {
	if t := reflect.TypeOf(client); t.Kind() == reflect.Pointer && t.Elem().Name() == "AutoPipeliner" {
		return true
	}
	_, ok := client.(interface {
		IsBlocking() bool
		IsClosed() bool
		Len() int
	})
	return ok
}
