package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

var etcdScheme = scheme{
	names: []string{"etcd", "etcds"},
	form:  "etcd://[user:password@]host:2379[,host:2379]",
	explains: "A cluster of etcd, of which the URL names some members. etcds:// uses TLS. The shortest\n" +
		"lock lasts 2 seconds.",
	open: func(a *address) (locker.Locker, func() error, error) {
		servers, timeout, prefix := a.servers("2379"), a.timeout(), a.text("prefix")
		tlsConfig := a.tlsConfig(a.scheme == "etcds")
		if a.path != "" {
			a.fail(errNothingAfterHosts)
		}
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		client, err := clientv3.New(clientv3.Config{
			Endpoints: servers, Username: a.user, Password: a.password, TLS: tlsConfig, Logger: zap.NewNop(),
			DialTimeout: timeout, DialKeepAliveTime: 5 * timeout, DialKeepAliveTimeout: timeout,
			DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(requireConnection(timeout))},
		})
		if err != nil { // with a user it has tried to log in
			return nil, nil, &UnavailableError{err}
		}
		return etcd.New(client, etcd.WithPrefix(prefix)), client.Close, nil
	},
}

// requireConnection ends a request if there is no connection to any server when timeout has passed.
// The error has the reason. With a connection, a request may take longer: it has to outlast an
// election.
func requireConnection(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		bounded, cancel := context.WithCancel(ctx)
		defer cancel()
		timer := time.AfterFunc(timeout, func() {
			if conn.GetState() != connectivity.Ready {
				cancel()
			}
		})
		defer timer.Stop()
		err := invoke(bounded, method, req, reply, conn, opts...)
		if err != nil && ctx.Err() == nil && bounded.Err() != nil {
			// Not err itself: the client would repeat the request.
			reason := ""
			if text := status.Convert(err).Message(); text != context.Canceled.Error() { // else a server hangs
				reason = ": " + text
			}
			return fmt.Errorf("no connection within %v%s", timeout, reason)
		}
		return err
	}
}
