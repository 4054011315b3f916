// Locker runs a command while it holds a lock, so that only one of the machines that start the command
// runs it at a time. It also shows, watches, breaks and measures such locks. The locks are those of
// package github.com/golockers/locker, on Redis, PostgreSQL, etcd or memcached, so commands and Go programs can share
// them.
//
//	go install github.com/golockers/locker/cmd/locker@latest
//	locker run --backend redis://localhost --key nightly --skip --min-hold 1h -- ./report
//
// [README.md] describes it, and so do locker --help and the manual page that locker man writes. [The
// command in an outage] shows what it does when the server is killed.
//
// [README.md]: https://github.com/golockers/locker/blob/main/cmd/locker/README.md
// [The command in an outage]: https://github.com/golockers/locker/blob/main/docs/cli.md
package main

import "os"

func main() {
	root := newRoot()
	root.SetArgs(twoDashes(root, os.Args[1:]))
	err := root.Execute()
	if err != nil && err.Error() != "" {
		say("%s", oneLine(err))
	}
	flush()
	os.Exit(statusOf(err))
}
