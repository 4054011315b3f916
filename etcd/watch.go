package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const maxWatchRest = 2 * time.Second // between watches that fail

var errWatchEnded = errors.New("etcd: the watch has ended")

// Watch returns a channel that receives a value when an entry of the lock is removed, by a release,
// an expiry, or a waiter that gives up. The watches of a client share one stream of requests. After
// a break the client continues at the revision where it stopped, so nothing is missed. If the
// history has been compacted meanwhile, or the cluster has had no leader, the Locker makes a new
// watch and wakes the watcher.
//
// Watch waits for up to 10 seconds while no member of the cluster answers. If the user may not read
// the lock's entries, it returns the client's error.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	lock := l.lockKey(key)
	live, err := call(ctx, l, "", func() (subscription, error) { return l.watch(ctx, lock) })
	if err != nil {
		return nil, err
	}
	woken := make(chan struct{}, 1)
	go func() {
		for rest := watchRest; ; rest = min(2*rest, maxWatchRest) {
			for resp := range live.removals {
				if len(resp.Events) > 0 {
					rest = watchRest
					wake(woken)
				}
			}
			live.cancel()
			if !sleep(ctx, rest) {
				return
			}
			if live, err = l.watch(ctx, lock); err == nil {
				wake(woken)
			}
		}
	}()
	return woken, nil
}

func wake(woken chan<- struct{}) {
	select {
	case woken <- struct{}{}:
	default:
	}
}

// subscription is a watch of the removals of a lock's entries.
type subscription struct {
	removals clientv3.WatchChan // closed when the watch has failed or was canceled
	cancel   context.CancelFunc
}

// watch returns a watch once it is live. With an error it returns one that has ended.
func (l *Locker) watch(ctx context.Context, lock string) (subscription, error) {
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	s := subscription{cancel: cancel}
	created, err := request(ctx, func(bounded context.Context) (clientv3.WatchResponse, error) {
		defer context.AfterFunc(bounded, cancel)()
		s.removals = l.client.Watcher.Watch(watching, lock, clientv3.WithPrefix(), clientv3.WithFilterPut(),
			clientv3.WithCreatedNotify())
		created, ok := <-s.removals
		if !ok {
			return created, errWatchEnded
		}
		return created, created.Err()
	})
	if err == nil && !created.Created {
		err = errWatchEnded
	}
	if err != nil {
		cancel()
		ended := make(chan clientv3.WatchResponse)
		close(ended)
		s.removals = ended
	}
	return s, err
}

// gone watches an entry of a lock that was created at that revision. The channel gets nil when the
// entry is removed, and an error if that cannot be watched.
//
// The watch begins at the present, and then the entry must still be there. A watch that begins in
// the past would do without that request. But etcd serves those only ten times a second.
func (l *Locker) gone(ctx context.Context, key string, created int64) <-chan error {
	gone := make(chan error, 1)
	go func() {
		gone <- func() error {
			isThere := clientv3.Compare(clientv3.CreateRevision(key), "=", created)
			for resp := range l.client.Watcher.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithFilterPut(),
				clientv3.WithCreatedNotify()) {
				switch {
				case len(resp.Events) > 0:
					return nil
				case resp.Created && resp.Err() == nil:
					now, err := l.txn(ctx, []clientv3.Cmp{isThere}, nil, nil)
					if err != nil || !now.Succeeded {
						return err
					}
				}
			}
			return errWatchEnded
		}()
	}()
	return gone
}
