package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/memcache"
)

var memcacheScheme = scheme{
	names: []string{"memcache", "memcaches"},
	form:  "memcache://host:11211[,host:11211]",
	explains: "memcached. All programs that share locks must list the same servers in the same order.\n" +
		"It has no passwords and no fencing numbers, and cannot list locks. memcaches:// uses TLS.",
	open: func(a *address) (locker.Locker, func() error, error) {
		if a.user != "" || a.inURL {
			a.fail(errors.New("memcached has no users and passwords"))
		}
		if a.path != "" {
			a.fail(errNothingAfterHosts)
		}
		servers, tlsConfig := a.servers("11211"), a.tlsConfig(a.scheme == "memcaches")
		timeout, prefix := a.timeout(), a.text("prefix")
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		// New would ignore a name that cannot be resolved, and a certificate is for the name.
		var list gomemcache.ServerList
		names := make(map[string]string) // by address
		for i, server := range servers {
			addr, err := net.ResolveTCPAddr("tcp", server)
			if err != nil {
				return nil, nil, &UnavailableError{err}
			}
			servers[i] = addr.String()
			names[servers[i]], _, _ = net.SplitHostPort(server)
		}
		if err := list.SetServers(servers...); err != nil {
			return nil, nil, &UnavailableError{err}
		}
		client := gomemcache.NewFromSelector(&list)
		client.Timeout, client.MaxIdleConns = timeout, a.connections
		if tlsConfig != nil {
			client.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				config := tlsConfig.Clone()
				if config.ServerName == "" {
					config.ServerName = names[addr]
				}
				return (&tls.Dialer{Config: config}).DialContext(ctx, network, addr)
			}
		}
		return memcache.New(client, memcache.WithPrefix(prefix)), client.Close, nil
	},
}
