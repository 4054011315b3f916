// Backends is examples/stampede with the clients of all servers. Stampede builds and runs it when
// -backend asks for one that it does not have itself.
package main

import (
	"os"

	"github.com/golockers/locker/examples/stampede/internal/stampede"
)

var backends = map[string]stampede.Backend{
	"rueidis":  {Open: stampede.OpenRedis, Connect: connectRueidis},
	"redigo":   {Open: stampede.OpenRedis, Connect: connectRedigo},
	"memcache": {Open: openMemcached, Connect: connectMemcached},
	"etcd":     {Open: openEtcd, Connect: connectEtcd},
	"postgres": {Open: openPostgres, Connect: connectPostgres},
}

func main() { os.Exit(stampede.Main(backends)) }
