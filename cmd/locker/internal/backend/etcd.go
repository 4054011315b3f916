package backend

import (
	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
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
		})
		if err != nil { // with a user it has tried to log in
			return nil, nil, &UnavailableError{err}
		}
		return etcd.New(client, etcd.WithPrefix(prefix)), client.Close, nil
	},
}
