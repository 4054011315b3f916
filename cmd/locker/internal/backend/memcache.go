package backend

import (
	"errors"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/memcache"
)

var memcacheScheme = scheme{
	names: []string{"memcache"},
	form:  "memcache://host:11211[,host:11211]",
	explains: "memcached. All programs that share locks must list the same servers in the same order.\n" +
		"It has no passwords and no fencing numbers, and cannot list locks.",
	open: func(a *address) (locker.Locker, func() error, error) {
		if a.user != "" || a.inURL {
			a.fail(errors.New("memcached has no users and passwords"))
		}
		if a.path != "" {
			a.fail(errNothingAfterHosts)
		}
		servers := a.servers("11211")
		timeout, prefix := a.timeout(), a.text("prefix")
		if err := a.check(); err != nil {
			return nil, nil, err
		}
		var list gomemcache.ServerList // New would ignore a name that cannot be resolved
		if err := list.SetServers(servers...); err != nil {
			return nil, nil, &UnavailableError{err}
		}
		client := gomemcache.NewFromSelector(&list)
		client.Timeout, client.MaxIdleConns = timeout, a.connections
		return memcache.New(client, memcache.WithPrefix(prefix)), client.Close, nil
	},
}
