package main

import (
	"testing"

	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	programtest.Main(m, func() int {
		stampede.CompiledIn = programtest.Compiled()
		return stampede.Main(backends)
	})
}

// on is a server for each backend, and what -backend says for it.
var on = map[string]func(t *testing.T) (address string, stop func()){
	"rueidis": onRedis("rueidis"),
	"redigo":  onRedis("redigo"),
	"memcache": func(t *testing.T) (string, func()) {
		s := testserver.Memcached(t)
		return "memcache://" + s.Addr, s.Stop
	},
	"postgres": func(t *testing.T) (string, func()) {
		s := testserver.Postgres(t)
		return "postgres://" + testserver.PostgresUser + "@" + s.Addr + "/postgres", s.Stop
	},
	"etcd": func(t *testing.T) (string, func()) {
		s := testserver.Etcd(t)
		return "etcd://" + s.Addr, s.Stop
	},
}

func onRedis(scheme string) func(t *testing.T) (string, func()) {
	return func(t *testing.T) (string, func()) {
		s := testserver.Redis(t)
		return scheme + "://" + s.Addr, s.Stop
	}
}

func TestBackends(t *testing.T) {
	require.Len(t, backends, len(on))
	for name := range backends {
		t.Run(name, func(t *testing.T) {
			address, stop := on[name](t)
			programtest.RequireTable(t, "-backend", address)
			stop()
			programtest.RequireNoServer(t, address)
		})
	}
}
