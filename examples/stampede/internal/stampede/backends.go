package stampede

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight"
)

const (
	// FreshFor is how long a value stays in the cache. No round takes that long: the first process lets
	// the key expire before each.
	FreshFor = 10 * time.Minute

	// Prefix is before the keys of values on servers that have the locks beside them.
	Prefix = "cache:"

	// Patience bounds a dial, a request and a reply.
	Patience = 5 * time.Second
)

// A Backend is a kind of server for the cache and the locks.
type Backend struct {
	// Open connects the first process, and returns where the fleet finds the server.
	Open func(context.Context, Address) (Server, Address, error)
	// Connect opens the cache and the locks of one process of the fleet.
	Connect func(Address) (Cache, locker.Locker, error)
}

// Server is the first process's side of the server.
type Server interface {
	// Expire lets a key's time run out and returns once the key is gone.
	Expire(ctx context.Context, key string) error
	// Requests is how many requests of the fleet it has served. Only differences mean something.
	Requests(ctx context.Context) (int64, error)
	Close()
}

// Cache is what the strategies keep the value in.
type Cache singleflight.Cache[string]

// of returns the backend at a, which is nil for the embedded one, and whether this program has it.
func of(backends map[string]Backend, a *Address) (Backend, bool) {
	switch {
	case a == nil:
		return Backend{openEmbedded, ConnectRedis}, true
	case a.Scheme == "redis":
		return Backend{OpenRedis, ConnectRedis}, true
	}
	b, ok := backends[a.Scheme]
	return b, ok
}

var errNoServer = errors.New("the server does not answer")

// open connects the first process to the server at a.
func (b Backend) open(ctx context.Context, a *Address) (Server, Address, error) {
	if a == nil {
		return b.Open(ctx, Address{})
	}
	s, fleet, err := b.Open(ctx, *a)
	if err != nil {
		// Some clients report each of their attempts on a line.
		err = fmt.Errorf("%w: %s: %s", errNoServer, a, strings.Join(strings.Fields(err.Error()), " "))
	}
	return s, fleet, err
}

// forms are the accepted values of -backend.
const forms = "redis://host:port, rueidis://host:port, redigo://host:port, memcache://host:port, " +
	"etcd://host:port or postgres://user@host:port/database"

// Address is a parsed -backend.
type Address struct {
	Scheme, Host   string
	User, Database string // of PostgreSQL
}

func (a Address) String() string {
	if a.User != "" {
		return a.Scheme + "://" + url.PathEscape(a.User) + "@" + a.Host + "/" + url.PathEscape(a.Database)
	}
	return a.Scheme + "://" + a.Host
}

func parseAddress(s string) (*Address, error) {
	u, err := url.Parse(s)
	if err == nil {
		_, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("-backend %q is none of %s", s, forms)
	}
	a := &Address{Scheme: u.Scheme, Host: u.Host}
	switch u.Scheme {
	case "redis", "rueidis", "redigo", "memcache", "etcd":
	case "postgres":
		a.User, a.Database = u.User.Username(), strings.TrimPrefix(u.Path, "/")
		if a.User == "" || a.Database == "" {
			a = &Address{}
		}
	default:
		a = &Address{}
	}
	if a.String() == s { // there is nothing else in it
		return a, nil
	}
	return nil, fmt.Errorf("-backend %q is none of %s", s, forms)
}
