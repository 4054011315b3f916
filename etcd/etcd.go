// Package etcd keeps locks in etcd, through go.etcd.io/etcd/client/v3.
//
//	client, err := clientv3.New(etcd.Tuned(clientv3.Config{Endpoints: []string{"localhost:2379"}}))
//	lease, err := locker.Lock(ctx, etcd.New(client), "invoice/42", 30*time.Second)
//
// The package is a module of its own. It needs etcd 3.4 or later; 3.5.13 or later is recommended,
// see below.
//
// # What is on the server
//
// A token that holds the lock of name k has an entry: the key "locker/k/token", with a lease of its
// own. So has each Locker that waits for it, with the token of one of its waiters. The value is
// "held" or "wait" and the ttl in seconds. When no entry is that of a holder, the one that was created
// first is next. In names and tokens, slashes, percent signs and all bytes but
// printable ASCII are replaced by % and two hexadecimal digits, so "etcdctl get --prefix
// locker/invoice%2F42/" shows who holds the lock of invoice/42 and who waits for it. The only other
// key is "locker/fence", once there was a fencing number. Each operation adds to the history that etcd keeps until compaction, so set
// --auto-compaction-retention.
//
// # Cost
//
// In round trips: 2 to take a free lock with [locker.Lock], 3 with [locker.TryLock], 1 to be
// refused, 4 to join the queue and 1 for the turn, 3 to extend, 2 to release, 1 for a fencing
// number, or 2 for the first in a second. After an extension by another ttl, or a failure, a lease that is no longer needed is
// revoked in the background.
//
// # Time
//
// A ttl is rounded up to whole seconds, and to the least ttl of the cluster: one and a half times
// its election timeout, 2 seconds by default. A lock that is not released ends up to a second after
// that. A new leader of the cluster restarts the ttl of each lease, so a lock may end up to one ttl
// late, but not early.
//
// A leader renews leases without asking the other members. So a leader that was deposed while it
// was stopped or cut off may report a renewal that has no effect. Extend detects that and repeats
// the renewal.
//
// # What is promised
//
// Every answer is that of a majority. A member that is cut off from the others returns errors. Data
// is on the disks of a majority before a lock is granted, so a crash or a failover forgets no lock.
//
//   - Before version 3.5.13, a leader that was stopped and deposed could end leases that had been
//     renewed since (etcd issue 15247). Newer versions make that unlikely. If two holders could do
//     harm, use [locker.Lease.Fence].
//   - Leases behind "etcd grpc-proxy" are renewed by the proxy, on its own schedule, and may end
//     early. Connect to the members.
//   - A cluster that is restored from a snapshot has the locks of the time when the snapshot was made.
//
// # Contexts and timeouts
//
// The client honors contexts. It has no timeouts of its own, so each request of a Locker may take
// 10 seconds. The client notices a member that hangs only if [clientv3.Config.DialKeepAliveTime] is
// set. If it could not reach any member for a long time, it waits for up to two minutes before it
// tries again, unless a grpc.WithConnectParams says otherwise. [Tuned] sets both.
package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/misuse"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Locker keeps locks in etcd. Make one with [New], and share it: it is safe for concurrent use,
// need not be closed, and has no goroutines while it is idle.
//
// All its methods return ctx's error when ctx is done, and otherwise an error that wraps the
// client's when the cluster cannot be reached, has no leader or no space, or does not allow the
// request. A request that is not answered within 10 seconds is an error as well. If there is a key
// among the entries of a lock that this package has not written, operations return an error and
// leave it alone.
type Locker struct {
	client *clientv3.Client
	leases etcdserverpb.LeaseClient
	prefix string

	calls inflight.Calls
	lines line.Lines[string, place] // by what the keys of a lock's entries begin with
}

var (
	_ locker.Fencer  = (*Locker)(nil)
	_ locker.Watcher = (*Locker)(nil)
	_ locker.Waiter  = (*Locker)(nil)

	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	prefix string
}

// WithPrefix sets the prefix of the entries' keys. The default, used if prefix is empty, is
// "locker/". Lockers with different prefixes are independent if neither prefix begins with the
// other.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a Locker on the cluster of client. The caller closes the client when the Locker is no
// longer used. With a nil client every operation returns an error.
//
// The KV and the Watcher of client may be wrapped, as package namespace does.
func New(client *clientv3.Client, opts ...Option) *Locker {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.prefix == "" {
		o.prefix = "locker/"
	}
	l := &Locker{prefix: o.prefix}
	if client != nil && client.ActiveConnection() != nil {
		l.client, l.leases = client, etcdserverpb.NewLeaseClient(client.ActiveConnection())
	}
	return l
}

var (
	errNoClient = misuse.New("etcd: nil client")
	errClosed   = errors.New("etcd: closed client")
	errChanging = errors.New("the lock, or the leader of the cluster, changed during each of three tries")
)

// giveUp is for how many seconds a Release tries to revoke the lease, although no entry has it any
// more.
const giveUp = 5

// passes is how often an operation tries its steps when the entry or the leader changes under them.
const passes = 3

// call runs one of the Locker's methods. It returns ctx's error if ctx has ended, whatever the
// method returned.
func call[T any](ctx context.Context, l *Locker, token string, method func() (T, error)) (T, error) {
	return inflight.Do(ctx, &l.calls, token, 0, func() (T, error) {
		var zero T
		switch {
		case l.client == nil:
			return zero, errNoClient
		case l.client.Ctx().Err() != nil:
			return zero, errClosed // which the client's own requests find out after seconds of retries
		}
		return method()
	})
}

// callInOrder is call for a method that waits for what is still undone for token.
func callInOrder[T any](ctx context.Context, l *Locker, token string, method func() (T, error)) (T, error) {
	return call(ctx, l, token, func() (v T, err error) {
		if err := l.calls.Wait(ctx, token); err != nil {
			return v, err
		}
		return method()
	})
}

// Acquire takes the lock for token if it is free. It takes three round trips, or one if it is
// refused. It is refused as long as any other token holds the lock or waits for it. When token
// holds the lock already, its entry moves to a new lease.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	return call(ctx, l, token, func() (bool, error) {
		seconds, err := wholeSeconds(ttl)
		if err != nil {
			return false, err
		}
		return l.acquire(ctx, l.entry(key, token), seconds)
	})
}

func (l *Locker) acquire(ctx context.Context, e entry, seconds int64) (bool, error) {
	for range passes {
		resp, err := l.txn(ctx, nil, []clientv3.Op{e.getHolder()}, nil)
		if err != nil {
			return false, err
		}
		first, err := readOne(e.lock, ranged(resp, 0))
		switch {
		case err != nil:
			return false, err
		case first.token == e.token && first.held:
			// An earlier attempt whose answer was lost may be undone by another process. That
			// revokes the lease which the entry has now.
			if lease, err := l.move(ctx, first, seconds); lease != clientv3.NoLease || err != nil {
				return err == nil, err
			}
			continue
		case first.token != "":
			return false, nil
		}
		lease, err := l.grant(ctx, e.token, seconds)
		if err != nil {
			return false, err
		}
		resp, err = l.txn(ctx, []clientv3.Cmp{e.isFree()}, []clientv3.Op{e.put(holds, seconds, lease)},
			[]clientv3.Op{e.getHolder()})
		if err == nil && resp.Succeeded {
			return true, nil
		}
		l.revokeLater(ctx, e.token, lease, seconds)
		if err != nil {
			return false, err
		}
		if first, err = readOne(e.lock, ranged(resp, 0)); err != nil || first.token != e.token {
			return false, err
		}
	}
	return false, errChanging
}

// Extend replaces the remaining time of a lock that token holds with ttl. That takes three round
// trips. The ttl of a lease cannot be changed, so with another ttl the lock gets a new lease, and a
// request in the background revokes the old one. Like Release, it waits, as long as ctx lasts,
// until an earlier call for the same token that has failed is undone.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	return callInOrder(ctx, l, token, func() (bool, error) {
		seconds, err := wholeSeconds(ttl)
		if err != nil {
			return false, err
		}
		return l.extend(ctx, l.entry(key, token), seconds)
	})
}

func (l *Locker) extend(ctx context.Context, e entry, seconds int64) (bool, error) {
	for range passes {
		resp, err := l.txn(ctx, nil, []clientv3.Op{e.get()}, nil)
		if err != nil {
			return false, err
		}
		s, err := readOne(e.lock, ranged(resp, 0))
		switch {
		case err != nil || !s.held:
			return false, err
		case s.seconds != seconds:
			if lease, err := l.move(ctx, s, seconds); lease != clientv3.NoLease || err != nil {
				return err == nil, err
			}
			continue
		}
		renewed, err := l.renew(ctx, s.lease)
		if err != nil {
			return false, err
		}
		now, term, err := l.confirm(ctx, e)
		switch {
		case err != nil || !now.held:
			return false, err
		case renewed.alive && now.lease == s.lease && term == renewed.term:
			return true, nil
		}
	}
	return false, errChanging
}

// confirm returns the state of e and the term of raft, and writes e again if it holds the lock: a
// move that has got no answer cannot have an effect after that. In a cluster without space it only
// reads.
func (l *Locker) confirm(ctx context.Context, e entry) (s state, term uint64, err error) {
	resp, err := l.txn(ctx, e.isHeld(), []clientv3.Op{e.touch(), e.get()}, []clientv3.Op{e.get()})
	if errors.Is(err, rpctypes.ErrNoSpace) {
		resp, err = l.txn(ctx, nil, []clientv3.Op{e.get()}, nil)
	}
	if err != nil {
		return state{}, 0, err
	}
	s, err = readOne(e.lock, ranged(resp, len(resp.Responses)-1))
	return s, resp.Header.RaftTerm, err
}

// move gives an entry a new lease. It returns NoLease if the entry has changed.
func (l *Locker) move(ctx context.Context, s state, seconds int64) (clientv3.LeaseID, error) {
	lease, err := l.grant(ctx, s.token, seconds)
	if err != nil {
		return clientv3.NoLease, err
	}
	word := waits
	if s.held {
		word = holds
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(s.key), "=", s.changed)
	resp, err := l.txn(ctx, []clientv3.Cmp{unchanged}, []clientv3.Op{s.put(word, seconds, lease)}, nil)
	switch {
	case err != nil:
		// To revoke the new lease could free the lock.
		l.undo(ctx, s.token, seconds, func(ctx context.Context) error { return l.settle(ctx, s, lease) })
		return clientv3.NoLease, err
	case !resp.Succeeded:
		l.revokeLater(ctx, s.token, lease, seconds)
		return clientv3.NoLease, nil
	}
	l.revokeLater(ctx, s.token, s.lease, s.seconds)
	return lease, nil
}

// settle revokes the lease that the entry does not have, after a move without an answer.
func (l *Locker) settle(ctx context.Context, s state, lease clientv3.LeaseID) error {
	now, _, err := l.confirm(ctx, s.entry)
	if err != nil {
		return err
	}
	if now.lease == lease {
		lease = s.lease
	}
	return l.revoke(ctx, lease)
}

// Release frees a lock that token holds, in one round trip, and the next in the queue then gets it.
// A second round trip revokes the lease. If that fails, Release still reports true, and the lease
// expires.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	return callInOrder(ctx, l, token, func() (bool, error) {
		e := l.entry(key, token)
		resp, err := l.txn(ctx, e.isHeld(), []clientv3.Op{clientv3.OpDelete(e.key, clientv3.WithPrevKV())},
			[]clientv3.Op{e.get()})
		if err != nil {
			return false, err
		}
		if !resp.Succeeded {
			_, err = readOne(e.lock, ranged(resp, 0))
			return false, err
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		for _, kv := range resp.Responses[0].GetResponseDeleteRange().PrevKvs {
			if id := clientv3.LeaseID(kv.Lease); l.revoke(short, id) != nil {
				l.revokeLater(ctx, token, id, giveUp)
			}
		}
		return true, nil
	})
}
