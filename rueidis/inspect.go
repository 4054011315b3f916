package rueidis

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redisscan"
	"github.com/redis/rueidis"
)

// Inspect reports who holds the lock of key, for how long, and how many processes wait in the
// queue, in one request. Those that have gone are counted until the queue passes them over. If the
// permits of a semaphore share a queue, its places are counted for each of them. A lock that was
// released to a process and not taken yet has the token "offer:" and the process's place. A lock of
// package redigo, a plain time and a value of another type are errors. A client whose options send
// all commands to a replica gets an answer from there, which may lag.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	return l.locks.Inspect(ctx, key)
}

// List yields the locks that are held and whose keys begin with prefix. It walks through all keys
// of the server, on a Cluster of all masters, with SCAN, about a thousand in one request, and makes
// a request for each lock, up to four at the same time. It remembers the keys that it has seen, since
// SCAN may repeat them.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return l.locks.List(ctx, prefix, l.scans)
}

// scans returns a Scan for each server that has locks.
func (l *Locker) scans(ctx context.Context) (all []redisscan.Scan, err error) {
	if l.alone {
		return []redisscan.Scan{l.scan(ctx, l.client)}, nil
	}
	for _, node := range l.client.Nodes() {
		isReplica, err := l.isReplica(ctx, node)
		if err != nil {
			return nil, err
		}
		if !isReplica {
			all = append(all, l.scan(ctx, node))
		}
	}
	return all, nil
}

// isReplica reports whether a node of a Cluster is one. A user who may not ask scans all nodes.
func (l *Locker) isReplica(ctx context.Context, node rueidis.Client) (bool, error) {
	reply, err := l.ask(ctx, node, "ROLE")
	if isReply(err, "NOPERM") {
		return false, nil
	}
	role, _ := reply.([]any)
	return len(role) > 0 && role[0] == "slave", err
}

func (l *Locker) scan(ctx context.Context, server rueidis.Client) redisscan.Scan {
	return func(cursor uint64, match string) (page redisscan.Page, err error) {
		reply, err := l.ask(ctx, server, "SCAN", strconv.FormatUint(cursor, 10), "MATCH", match, "COUNT", "1000")
		if err != nil {
			return page, err
		}
		list, _ := reply.([]any)
		if len(list) == 2 {
			next, isText := list[0].(string)
			keys, isList := list[1].([]any)
			page.Next, err = strconv.ParseUint(next, 10, 64)
			for _, key := range keys {
				name, ok := key.(string)
				page.Keys = append(page.Keys, name)
				isList = isList && ok
			}
			if err == nil && isText && isList {
				return page, nil
			}
		}
		return page, fmt.Errorf("unexpected reply to a scan: %v", reply)
	}
}

// ask sends a command without a key or a token to one server.
func (l *Locker) ask(ctx context.Context, server rueidis.Client, command ...string) (any, error) {
	s := redislock.NewSending(ctx, "")
	return redislock.Call(&l.locks.Caller, s, func() (any, error) {
		return l.doOn(server, s, server.B().Arbitrary(command...).Build())
	})
}
