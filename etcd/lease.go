package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// answerTime is how long a request may take. A server gives up after 7 seconds by itself, in
	// an election for instance, and its error says more.
	answerTime = 10 * time.Second

	// leaveTime is how long a Wait that has ended tries to take its place with it before it returns.
	leaveTime = 100 * time.Millisecond

	// longest is the longest ttl of a lease, in seconds.
	longest int64 = 9_000_000_000
)

var errNoAnswer = fmt.Errorf("no answer within %v", answerTime)

// request makes one request, which may take answerTime.
func request[T any](ctx context.Context, send func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	v, err := send(bounded)
	if err == nil {
		return v, nil
	}
	if ctx.Err() == nil && bounded.Err() != nil {
		return v, errNoAnswer
	}
	return v, rpctypes.Error(err)
}

// isUnavailable reports whether err means that a connection broke or that there is no leader, which
// may be over soon.
func isUnavailable(err error) bool {
	if answer, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return answer.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// isFinal reports whether err is the server's refusal, so that nothing has happened, and nothing
// will if the request is repeated.
func isFinal(err error) bool {
	_, ok := errors.AsType[rpctypes.EtcdError](err)
	return ok && !isUnavailable(err)
}

// txn makes a transaction. The client does not repeat it, unlike a Get.
func (l *Locker) txn(ctx context.Context, when []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	return request(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return l.client.KV.Txn(ctx).If(when...).Then(then...).Else(otherwise...).Commit()
	})
}

// wholeSeconds returns ttl in seconds, rounded up.
func wholeSeconds(ttl time.Duration) (int64, error) {
	n := int64(ttl / time.Second)
	if ttl%time.Second > 0 {
		n++
	}
	if ttl < time.Millisecond || n > longest {
		return 0, fmt.Errorf("%w: %v is not between 1ms and %d seconds", locker.ErrInvalidTTL, ttl, longest)
	}
	return n, nil
}

// grant makes a lease. The Locker chooses its number, and so can revoke it without having seen the
// answer. That happens in the background if there is none.
func (l *Locker) grant(ctx context.Context, token string, seconds int64) (clientv3.LeaseID, error) {
	id := clientv3.LeaseID(1 + rand.Int64N(1<<63-1))
	granted, err := request(ctx, func(ctx context.Context) (*etcdserverpb.LeaseGrantResponse, error) {
		return l.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: int64(id), TTL: seconds})
	})
	if err == nil && granted.TTL < seconds {
		err = fmt.Errorf("the lease has a ttl of %d s, not of %d s", granted.TTL, seconds)
	}
	if err == nil {
		return id, nil
	}
	if !isFinal(err) {
		l.revokeLater(ctx, token, id, seconds)
	}
	return clientv3.NoLease, err
}

// renewal is the answer to a request to keep a lease alive.
type renewal struct {
	alive bool
	// term is the term of the last entry that the member had applied before the renewal. A leader
	// renews a lease without asking the others, so one that has been deposed and does not know it
	// yet does so in vain. If the answer to a later transaction has the same term, the leader that
	// renewed the lease was still the leader: that of a later term would have committed the
	// transaction in its own.
	term uint64
}

func (l *Locker) renew(ctx context.Context, id clientv3.LeaseID) (renewal, error) {
	resp, err := request(ctx, func(ctx context.Context) (*etcdserverpb.LeaseKeepAliveResponse, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream
		stream, err := l.leases.LeaseKeepAlive(ctx)
		if err != nil {
			return nil, err
		}
		// If that fails, Recv returns the reason.
		_ = stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)})
		return stream.Recv()
	})
	if err != nil {
		return renewal{}, err
	}
	return renewal{alive: resp.TTL > 0, term: resp.Header.GetRaftTerm()}, nil
}

// revoke ends a lease, and removes the entry that has it.
func (l *Locker) revoke(ctx context.Context, id clientv3.LeaseID) error {
	_, err := request(ctx, func(ctx context.Context) (*etcdserverpb.LeaseRevokeResponse, error) {
		return l.leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: int64(id)})
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = nil
	}
	return err
}

// revokeLater revokes a lease of so many seconds in the background.
func (l *Locker) revokeLater(ctx context.Context, token string, id clientv3.LeaseID, seconds int64) {
	l.undo(ctx, token, seconds, func(ctx context.Context) error { return l.revoke(ctx, id) })
}

// undo calls step in the background, on a context with ctx's values, until it succeeds, the client is
// closed, or so many seconds have passed: by then the lease in question has expired. Later calls for
// the token may wait for it.
func (l *Locker) undo(ctx context.Context, token string, seconds int64, step func(context.Context) error) {
	ended := make(chan struct{})
	end := func() {}
	l.calls.Leave(token, ended, func(remove func()) bool {
		end = func() { remove(); close(ended) }
		return true
	})
	window := time.Duration(min(seconds, int64(undo.Longest/time.Second))) * time.Second
	started := undo.Start(ctx, undo.Work{Owner: l, Window: window, GaveUp: func(error) { end() },
		Attempt: func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(l.client.Ctx(), cancel)()
			err := step(ctx)
			done := err == nil || isFinal(err) || l.client.Ctx().Err() != nil
			if done {
				end()
			}
			return done, err
		}})
	if !started {
		end()
	}
}

// sleep reports whether d has passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
