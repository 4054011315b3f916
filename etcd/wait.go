package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/waithook"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	lookAgain = 10 * time.Second       // a waiter looks after this if nothing has happened
	watchRest = 100 * time.Millisecond // and after this if its watch or a look has failed
	outage    = 5 * time.Second        // and so again for this long if the cluster is not available
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in etcd and
// returns when all entries before its own have gone. The queue is first come, first served across
// processes. Each waiter watches the one before it, so a release wakes one waiter.
//
// Taking a free lock takes two round trips. Joining the queue takes four, and taking the lock in
// turn one, or two if the lease was last renewed more than a tenth of ttl ago. Every 10 seconds, or
// every third of ttl if that is less, a waiter checks its place, and renews its lease if necessary.
// A place whose lease has expired is lost, and Wait joins the queue again at its end. While the
// cluster is not available, a waiter in the queue tries again for five seconds. Any other error of
// the backend ends Wait.
//
// If ctx ends while Wait is in the queue, its place, or the lock if it has been granted by then, is
// given up in the background.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	w := waiting{l: l, entry: l.entry(key, token), ttl: ttl}
	deadline, err = call(ctx, l, token, func() (_ time.Time, err error) {
		if w.seconds, err = wholeSeconds(ttl); err != nil {
			return time.Time{}, err
		}
		err = w.wait(ctx)
		return w.renewed.Add(ttl), err
	})
	if err == nil {
		return deadline, nil
	}
	w.giveUp(ctx)
	if w.queued && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
	}
	return time.Time{}, err
}

// waiting is one Wait.
type waiting struct {
	l *Locker
	entry
	ttl     time.Duration
	seconds int64

	lease   clientv3.LeaseID // of the entry; NoLease if there is nothing to give up
	renewed time.Time        // the lease lives for its ttl from then on, or longer
	queued  bool             // the lock was found to be held by another

	created int64            // revision of the entry
	before  *mvccpb.KeyValue // the entry before it; nil if that is not known
}

var errPlaceLost = errors.New("the place in the queue has expired")

func (w *waiting) wait(ctx context.Context) error {
	for {
		held, err := w.join(ctx)
		if err == nil && !held {
			w.queued = true
			waithook.Call(ctx)
			err = w.stand(ctx)
		}
		switch {
		case errors.Is(err, errPlaceLost):
		case err != nil:
			return err
		case time.Since(w.renewed) <= w.ttl/2:
			return nil
		default: // a renewal was in vain, or late
			start := time.Now()
			if held, err = w.l.extend(ctx, w.entry, w.seconds); err != nil {
				return err
			}
			if held {
				w.renewed = start
				return nil
			}
		}
		w.giveUp(ctx)
	}
}

// join takes the lock if it is free, and otherwise a place in the queue.
func (w *waiting) join(ctx context.Context) (held bool, err error) {
	for range passes {
		w.renewed = time.Now()
		if w.lease, err = w.l.grant(ctx, w.token, w.seconds); err != nil {
			return false, err
		}
		isNew := clientv3.Compare(clientv3.CreateRevision(w.key), "=", 0)
		queue := clientv3.OpTxn([]clientv3.Cmp{isNew},
			[]clientv3.Op{w.getLast(), w.put(waits, w.seconds, w.lease)}, []clientv3.Op{w.get()})
		resp, err := w.l.txn(ctx, []clientv3.Cmp{w.isFree()},
			[]clientv3.Op{w.put(holds, w.seconds, w.lease)}, []clientv3.Op{queue})
		if err != nil || resp.Succeeded {
			return err == nil, err
		}
		queued := (*clientv3.TxnResponse)(resp.Responses[0].GetResponseTxn())
		s, err := readOne(w.lock, ranged(queued, 0))
		if err != nil {
			return false, err
		}
		if queued.Succeeded {
			w.created, w.before = resp.Header.Revision, ranged(queued, 0)[0]
			return false, nil
		}
		// The token has an entry: it holds the lock, or an earlier Wait has not been undone.
		w.giveUp(ctx)
		w.renewed = time.Now()
		lease, err := w.l.move(ctx, s, w.seconds)
		switch {
		case err != nil:
			return false, err
		case lease == clientv3.NoLease: // the entry has changed
		case s.held:
			return true, nil // and nothing to give up
		default:
			w.lease, w.created, w.before = lease, s.created, nil
			return false, nil
		}
	}
	return false, errChanging
}

// stand returns when it is the entry's turn.
func (w *waiting) stand(ctx context.Context) error {
	var failing time.Time
	for {
		if err := w.rest(ctx); err != nil {
			return err
		}
		held, err := w.look(ctx)
		switch {
		case err == nil:
			failing = time.Time{}
		case !isUnavailable(err):
			return err
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > outage:
			return err
		}
		if held || err != nil && !sleep(ctx, watchRest) {
			return err
		}
	}
}

// rest returns when the entry before this one is removed, and at the latest when the lease should be
// renewed.
func (w *waiting) rest(ctx context.Context) error {
	if w.before == nil {
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	next := time.NewTimer(min(lookAgain, time.Duration(w.seconds)*time.Second/3))
	defer next.Stop()
	select {
	case err := <-w.l.gone(watching, string(w.before.Key), w.before.CreateRevision):
		if err != nil {
			sleep(ctx, watchRest)
		}
	case <-next.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// look takes the lock if the entry is the first, and otherwise finds the one before it.
func (w *waiting) look(ctx context.Context) (held bool, err error) {
	start := time.Now()
	var renewed renewal
	if start.Sub(w.renewed) > w.ttl/10 {
		if renewed, err = w.l.renew(ctx, w.lease); err != nil {
			return false, err
		}
	}
	mine := clientv3.Compare(clientv3.LeaseValue(w.key), "=", w.lease)
	resp, err := w.l.txn(ctx, append(w.isFirst(w.created), mine),
		[]clientv3.Op{w.put(holds, w.seconds, w.lease)}, []clientv3.Op{w.get(), w.getBefore(w.created)})
	if err != nil {
		return false, err
	}
	if renewed.alive && resp.Header.RaftTerm == renewed.term {
		w.renewed = start
	}
	if resp.Succeeded {
		return true, nil
	}
	s, err := readOne(w.lock, ranged(resp, 0))
	if err != nil {
		return false, err
	}
	before := ranged(resp, 1)
	if s.created != w.created || s.lease != w.lease || len(before) == 0 {
		return false, errPlaceLost
	}
	// A key that this package has not written counts as well.
	w.before = before[0]
	return false, nil
}

// giveUp gives up the entry in the background.
func (w *waiting) giveUp(ctx context.Context) {
	if w.lease != clientv3.NoLease {
		w.l.revokeLater(ctx, w.token, w.lease, w.seconds)
		w.lease = clientv3.NoLease
	}
}
