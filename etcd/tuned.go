package etcd

import (
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// tunedReconnect is how long a client that has lost its connections waits at most before it tries again,
// and for how long a try lasts at least.
const tunedReconnect = 3 * time.Second

// Tuned returns a copy of c with the settings that locks need, wherever c leaves the default of etcd's
// client: it notices within seconds that a member hangs (DialKeepAliveTime 10 s, DialKeepAliveTimeout
// 3 s) or is back (a try at least every 3 s, where gRPC waits up to two minutes), and DialTimeout is
// five seconds. Fields that are set keep their values, and so do the DialOptions.
//
//	client, err := clientv3.New(etcd.Tuned(clientv3.Config{Endpoints: []string{"localhost:2379"}}))
//	…
//	l := etcd.New(client)
func Tuned(c clientv3.Config) clientv3.Config {
	for _, d := range []struct {
		setting *time.Duration
		value   time.Duration
	}{{&c.DialTimeout, 5 * time.Second}, {&c.DialKeepAliveTime, 10 * time.Second}, {&c.DialKeepAliveTimeout, 3 * time.Second}} {
		if *d.setting == 0 {
			*d.setting = d.value
		}
	}
	reconnect := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: tunedReconnect}
	reconnect.Backoff.MaxDelay = tunedReconnect
	// Of two options for the same setting the last one counts.
	c.DialOptions = slices.Concat([]grpc.DialOption{grpc.WithConnectParams(reconnect)}, c.DialOptions)
	return c
}
