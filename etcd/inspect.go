package etcd

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/golockers/locker"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Inspect reports who holds the lock of key, for how long, in whole seconds, and how many
// processes wait in the queue. A lock that the first waiter is about to take is reported as free. Inspect takes two
// requests; the answer to the second, about the lease, may be that of a leader that has been
// deposed and does not know it yet.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	info, err := call(ctx, l, "", func() (locker.Info, error) {
		e := l.entry(key, "")
		resp, err := l.txn(ctx, nil, []clientv3.Op{e.getHolder()}, nil)
		if err != nil {
			return locker.Info{}, err
		}
		entries := resp.Responses[0].GetResponseRange()
		return l.info(ctx, e.lock, entries.Kvs, int(entries.Count))
	})
	info.Key = key
	return info, err
}

// info describes a lock by the first of its entries.
func (l *Locker) info(ctx context.Context, lock string, first []*mvccpb.KeyValue, entries int) (locker.Info, error) {
	s, err := readOne(lock, first)
	if err != nil {
		return locker.Info{}, err
	}
	if !s.held {
		return locker.Info{Waiters: entries}, nil
	}
	resp, err := request(ctx, func(ctx context.Context) (*etcdserverpb.LeaseTimeToLiveResponse, error) {
		return l.leases.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: int64(s.lease)})
	})
	if err != nil {
		return locker.Info{}, err
	}
	return locker.Info{Token: s.token, TTL: time.Duration(resp.TTL) * time.Second, Waiters: entries - 1}, nil
}

// page is how many entries List asks for at a time.
const page = 1000

// List yields the locks that are held and whose keys begin with prefix. It reads all their entries,
// a thousand in one request, and makes a request for each lock.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		from := l.prefix + escape(prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		var lock string
		var first *mvccpb.KeyValue // of lock's entries
		var entries int
		report := func() bool { return entries == 0 || l.report(ctx, lock, first, entries, yield) }
		for more := true; more; {
			resp, err := call(ctx, l, "", func() (*clientv3.TxnResponse, error) {
				return l.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(page))}, nil)
			})
			if err != nil {
				yield(locker.Info{}, err)
				return
			}
			found := resp.Responses[0].GetResponseRange()
			more = found.More
			for _, kv := range found.Kvs {
				key := string(kv.Key)
				from = key + "\x00"
				slash := strings.IndexByte(key[len(l.prefix):], '/')
				if slash < 0 {
					continue // no entry
				}
				if own := key[:len(l.prefix)+slash+1]; own != lock {
					if !report() {
						return
					}
					lock, first, entries = own, kv, 0
				}
				entries++
				if string(kv.Value) < string(first.Value) { // that of a holder is the least
					first = kv
				}
			}
		}
		report()
	}
}

// report yields a lock if it is held. It reports false if the iteration ends.
func (l *Locker) report(ctx context.Context, lock string, first *mvccpb.KeyValue, entries int,
	yield func(locker.Info, error) bool) bool {
	key, ok := unescape(strings.TrimSuffix(lock[len(l.prefix):], "/"))
	if !ok {
		return true // no lock of this package
	}
	foreign := false
	info, err := call(ctx, l, "", func() (locker.Info, error) {
		info, err := l.info(ctx, lock, []*mvccpb.KeyValue{first}, entries)
		foreign = errors.Is(err, errForeign)
		return info, err
	})
	switch {
	case err == nil && info.Token == "":
		return true
	case err == nil || foreign:
		info.Key = key
		return yield(info, err)
	}
	yield(locker.Info{}, err)
	return false
}
