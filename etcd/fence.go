package etcd

// Fencing numbers: the revisions of the store, and what is added to them.

import (
	"context"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// fenceLag is how far behind the clock of the process a number may be. Numbers of other backends
	// are at their servers' clocks, so it is also for how long those are greater after a move.
	fenceLag = time.Millisecond

	// mostLag is that of a number which another process has raised meanwhile.
	mostLag = time.Second
)

// Fence returns a fencing number for a lock that token holds: the revision of the store after a write
// of its own, and what the key "fence" after the prefix says. So numbers grow across all locks of the
// cluster, even after a change of leader and whatever the clocks say. Each is at least this process's
// time in microseconds since 1970, less a millisecond, or less a second if processes mint at the same
// time, since a Fence that would be further behind raises what is added. So they also keep growing if
// another backend of this library minted the last number, if the cluster was replaced by an empty one,
// or if it was restored from a snapshot, as far as the clocks agree. Fence takes two round trips, or
// one if another has raised within the last millisecond.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	number, err := callInOrder(ctx, l, token, func() (int64, error) { return l.mint(ctx, l.entry(key, token)) })
	return uint64(number), number > 0 && err == nil, err
}

func (l *Locker) mint(ctx context.Context, e entry) (int64, error) {
	base := l.prefix + "fence" // without a slash behind the prefix it is no lock's entry
	lag := fenceLag
	for range passes {
		resp, err := l.txn(ctx, e.isHeld(), []clientv3.Op{e.touch(), clientv3.OpGet(base)}, []clientv3.Op{e.get()})
		if err != nil {
			return 0, err
		}
		if !resp.Succeeded {
			_, err = readOne(e.lock, ranged(resp, 0))
			return 0, err
		}
		var added, changed int64
		for _, kv := range ranged(resp, 1) {
			changed = kv.ModRevision
			if added, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil || added < 0 {
				return 0, fmt.Errorf("%w: %.100q is %.32q", errForeign, kv.Key, kv.Value)
			}
		}
		now := time.Now()
		if number := added + resp.Header.Revision; number >= now.Add(-lag).UnixMicro() {
			return number, nil
		}
		// What is added only grows, so numbers do as well.
		added = max(now.UnixMicro()-resp.Header.Revision, 0)
		unchanged := clientv3.Compare(clientv3.ModRevision(base), "=", changed)
		resp, err = l.txn(ctx, append(e.isHeld(), unchanged),
			[]clientv3.Op{clientv3.OpPut(base, strconv.FormatInt(added, 10))}, nil)
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			return added + resp.Header.Revision, nil
		}
		lag = mostLag
	}
	return 0, errChanging
}
