// Stampede shows what happens when a hot cache key expires: many operating-system processes, each
// with many goroutines, miss it at the same moment, and each strategy in turn has to get the new
// value to all of them. The source is a real SQL database, the cache and the locks are on a real
// server.
//
//	go run -C examples/stampede .
//	go run -C examples/stampede . -backend redis://127.0.0.1:6379 -processes 8 -rounds 100
//	go run -C examples/stampede . -http :8080
//
// Without -backend everything is embedded: the database is SQLite in a temporary directory, the
// server is a miniredis inside the first process. It prints, for each strategy, the database
// queries a round, when the median and the last caller had the value, and the requests that reached
// the server.
//
// With -http it shows the rounds on a page as they happen. Rounds follow each other for as long as
// a browser has the page open, until the program is interrupted.
//
// In the last strategy the database refuses every query, and all callers get its error. On backends
// whose cache is no slots.Keeper, here PostgreSQL and etcd, each process asks it.
//
// The exit status is 1 if the Loader (layered) or the Fleet (without a cache) did not query the
// database exactly once in a round, or a caller did not get what that round has for it; 2 for bad
// flags or a server that does not answer; 130 if interrupted. With -http an interruption is the
// usual end, so its status is 0.
//
// Where to look: the program is internal/stampede. Its strategies.go holds what is compared,
// parent.go the rounds, child.go a process of the fleet, redis.go and embedded.go the cache and the
// locks, board.go what the page shows. The clients of other servers take long to compile, so they
// are in a module of their own, backends, which is built when -backend asks for one of them. The
// tests of the page are in browser.
package main

import (
	"os"

	"github.com/golockers/locker/examples/stampede/internal/stampede"
)

func main() { os.Exit(stampede.Main(nil)) }
