package redisv9

import (
	"time"

	"github.com/redis/go-redis/v9"
)

const defaultTimeout = 3 * time.Second // go-redis's own

// limits is what a client does about time.
type limits struct {
	io        time.Duration // how long a request may go without an answer
	inline    time.Duration // contexts that end sooner than this need a goroutine; 0: the client minds them
	unbounded bool          // the client has no timeout, and cannot be given one
}

// limitsOfClient returns a client with timeouts, too: c itself if it has them.
func limitsOfClient(c *redis.Client) (*redis.Client, limits) {
	o := c.Options()
	read, write := o.ReadTimeout, o.WriteTimeout
	if read <= 0 || write <= 0 {
		c, read, write = c.WithTimeout(defaultTimeout), defaultTimeout, defaultTimeout
	}
	// A dial by TLS does not mind contexts.
	return c, newLimits(read, write, o.ContextTimeoutEnabled && o.TLSConfig == nil)
}

func limitsOfRing(o *redis.RingOptions) limits {
	read := o.ReadTimeout
	if read == 0 {
		read = defaultTimeout
	}
	write := o.WriteTimeout
	if write == 0 {
		write = read
	}
	return newLimits(read, write, o.ContextTimeoutEnabled && o.TLSConfig == nil)
}

func limitsOfCluster(o *redis.ClusterOptions) limits {
	read, write := o.ReadTimeout, o.WriteTimeout
	if read == 0 { // it was -1, which go-redis passes on to the nodes' clients as 0, their default
		read = defaultTimeout
	}
	if write == 0 {
		write = read
	}
	return newLimits(read, write, o.ContextTimeoutEnabled && o.TLSConfig == nil)
}

func newLimits(read, write time.Duration, mindsContexts bool) limits {
	switch {
	case read < 0 || write < 0:
		return limits{io: defaultTimeout, inline: 1<<63 - 1, unbounded: true}
	case mindsContexts:
		return limits{io: max(read, write)}
	default:
		return limits{io: max(read, write), inline: max(read, write)}
	}
}
