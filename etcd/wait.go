package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/internal/waithook"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// placeSeconds is the ttl of the lease of a place. It gets that after shortenAfter, since most
	// waits are shorter, and its first lease may as well be the holder's.
	placeSeconds = 10
	shortenAfter = time.Second

	watchRest = 100 * time.Millisecond // a waiter looks after this if its watch or a look has failed,
	outage    = 5 * time.Second        // and so again for this long if the cluster is not available
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in etcd and
// returns when all entries before its own have gone. The waiters of a Locker are served in order, and
// have one entry together: the first of them stands there, and the others wait without requests.
// Lockers take turns. Each watches the entry before its own, so a release wakes one of them.
//
// Taking a free lock takes two round trips. Joining the queue takes four, and taking the lock in
// turn one, or two after a second of waiting. From then on the entry has a lease of its own, of 10
// seconds or ttl if that is less, which the first waiter renews, so a process that vanishes does not
// block the queue for longer. An entry whose lease has expired is lost, and Wait joins the queue again
// at its end. While the cluster is not available, the first waiter tries again for five seconds. Its
// error is then the error of all. Any other error of the backend ends their Waits as well.
//
// If ctx ends while Wait is in the queue, its place goes to the next waiter of the Locker, or is
// given up before Wait returns. If that takes longer than a tenth of a second, it goes on in the
// background, for up to a minute or until the client is closed: the place then ends with its lease.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	w := &waiter{l: l, entry: l.entry(key, token), ttl: ttl}
	if w.seconds, err = wholeSeconds(ttl); err != nil {
		return time.Time{}, err
	}
	w.turn = l.lines.Join(w.lock)
	defer func() { // also after a panic
		w.keep()
		if w.turn.Leave() {
			w.turn.State().end(ctx, w)
		}
		w.revokeSoon(ctx, w.lease, w.seconds)
	}()
	select {
	case <-w.turn.Turn():
	default:
		waithook.Call(ctx)
		select {
		case <-w.turn.Turn():
		case <-ctx.Done():
			return time.Time{}, w.left(ctx)
		}
	}
	if err := w.turn.Err(); err != nil {
		return time.Time{}, err
	}
	w.place = w.turn.State()
	deadline, err = call(ctx, l, token, func() (time.Time, error) {
		err := w.wait(ctx)
		return w.renewed.Add(ttl), err
	})
	switch {
	case err == nil:
		w.lease = clientv3.NoLease // it is the holder's
		return deadline, nil
	case ctx.Err() != nil:
		return time.Time{}, w.left(ctx)
	}
	w.keep()
	w.turn.Fail(undo.Needless(err))
	w.place.end(ctx, w)
	return time.Time{}, err
}

// waiter is one Wait.
type waiter struct {
	l *Locker
	entry
	ttl     time.Duration
	seconds int64
	turn    *line.Place[string, place]
	place   *place // nil until it is the first

	lease   clientv3.LeaseID // to hold the lock with; NoLease: none yet
	renewed time.Time        // it lives for its ttl from then on, or longer
}

// place is the Locker's entry in the queue of a lock. It belongs to the line: the first waiter hands
// it on. Its key has the token of the waiter that joined. If that has gone when it is the entry's
// turn, the next waiter replaces it by one of its own.
type place struct {
	entry
	lease   clientv3.LeaseID // NoLease: there is no place
	seconds int64            // its ttl
	created int64            // revision of the entry
	due     time.Time        // when to renew the lease

	before state // the entry before it
	gone   <-chan error
	stop   context.CancelFunc // the watch of that; nil: there is none
}

var errPlaceLost = errors.New("the place in the queue has expired")

// left returns the error of a waiter whose context has ended.
func (w *waiter) left(ctx context.Context) error {
	if w.turn.Refused() {
		return fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
	}
	return ctx.Err()
}

// keep leaves the lease of the place to the line.
func (w *waiter) keep() {
	if w.place != nil && w.lease == w.place.lease {
		w.lease = clientv3.NoLease
	}
}

// end gives up the place. The line has ended, or the place is lost.
func (p *place) end(ctx context.Context, w *waiter) {
	p.unwatch()
	w.revokeSoon(ctx, p.lease, p.seconds)
	*p = place{}
}

// revokeSoon gives up what has the lease, for as long as leaveTime, and then in the background.
func (w *waiter) revokeSoon(ctx context.Context, lease clientv3.LeaseID, seconds int64) {
	if lease == clientv3.NoLease {
		return
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if w.l.revoke(short, lease) != nil {
		w.l.revokeLater(ctx, w.token, lease, seconds)
	}
}

// wait takes the lock for the first waiter of a line.
func (w *waiter) wait(ctx context.Context) error {
	p := w.place
	for {
		var held bool
		var err error
		if p.lease == clientv3.NoLease {
			held, err = w.join(ctx)
		}
		if err == nil && !held {
			w.turn.Refuse()
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
		w.keep()
		p.end(ctx, w)
		w.revokeSoon(ctx, w.lease, w.seconds)
		w.lease = clientv3.NoLease
	}
}

// join takes the lock if it is free, and otherwise a place in the queue.
func (w *waiter) join(ctx context.Context) (held bool, err error) {
	p := w.place
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
			*p = place{entry: w.entry, lease: w.lease, seconds: w.seconds, created: resp.Header.Revision, before: s}
			p.due = w.renewed.Add(min(shortenAfter, p.third()))
			p.watch(ctx, w.l)
			return false, nil
		}
		// The token has an entry: it holds the lock, or an earlier Wait has not been undone.
		w.revokeSoon(ctx, w.lease, w.seconds)
		w.lease, w.renewed = clientv3.NoLease, time.Now()
		lease, err := w.l.move(ctx, s, w.seconds)
		switch {
		case err != nil:
			return false, err
		case lease == clientv3.NoLease: // the entry has changed
		case s.held:
			return true, nil // and nothing to give up
		default:
			w.lease = lease
			*p = place{entry: w.entry, lease: lease, seconds: w.seconds, created: s.created}
			p.due = w.renewed.Add(p.third())
			return false, nil
		}
	}
	return false, errChanging
}

// third returns how long the lease of the place is not renewed.
func (p *place) third() time.Duration { return time.Duration(p.seconds) * time.Second / 3 }

// watch begins to watch the entry before the place, for whoever is the first of the line.
func (p *place) watch(ctx context.Context, l *Locker) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop, p.gone = stop, l.gone(watching, p.before.key, p.before.created)
}

func (p *place) unwatch() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// stand returns when the waiter has taken the lock in its turn.
func (w *waiter) stand(ctx context.Context) error {
	p := w.place
	var failing time.Time
	for {
		held, err := w.step(ctx)
		switch {
		case held:
			return nil
		case err == nil:
			failing = time.Time{}
		case !isUnavailable(err):
			return err
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > outage:
			return err
		}
		if err != nil {
			if !sleep(ctx, watchRest) {
				return ctx.Err()
			}
		}
		if err != nil || p.stop == nil {
			continue
		}
		timer := time.NewTimer(time.Until(p.due))
		select {
		case err := <-p.gone:
			p.unwatch()
			if err != nil {
				sleep(ctx, watchRest)
			}
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// step does what is due.
func (w *waiter) step(ctx context.Context) (held bool, err error) {
	p := w.place
	if p.stop == nil { // the entry before it has gone, or is not known
		if held, err = w.take(ctx); held || err != nil {
			return held, err
		}
		p.watch(ctx, w.l)
	}
	if time.Now().Before(p.due) {
		return false, nil
	}
	return false, w.renewPlace(ctx)
}

// renewPlace keeps the place, and makes sure that nothing has happened that the watch did not tell.
func (w *waiter) renewPlace(ctx context.Context) error {
	p := w.place
	if p.seconds > placeSeconds {
		resp, err := w.l.txn(ctx, nil, []clientv3.Op{p.get()}, nil)
		if err != nil {
			return err
		}
		s, err := readOne(p.lock, ranged(resp, 0))
		if err != nil || s.created != p.created {
			return errors.Join(err, errPlaceLost)
		}
		lease, err := w.l.move(ctx, s, placeSeconds)
		if lease != clientv3.NoLease {
			w.keep() // which is revoked
			p.lease, p.seconds = lease, placeSeconds
			p.due = time.Now().Add(p.third())
		}
		return err
	}
	if _, err := w.l.renew(ctx, p.lease); err != nil {
		return err
	}
	p.due = time.Now().Add(p.third())
	resp, err := w.l.txn(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(p.key), "=", p.created),
		clientv3.Compare(clientv3.CreateRevision(p.before.key), "=", p.before.created),
	}, nil, nil)
	if err == nil && !resp.Succeeded {
		p.unwatch()
	}
	return err
}

// take takes the lock if it is the place's turn, and otherwise finds the entry before it.
func (w *waiter) take(ctx context.Context) (held bool, err error) {
	p := w.place
	start := time.Now()
	var renewed renewal
	if w.lease != clientv3.NoLease && start.Sub(w.renewed) > w.ttl/10 {
		if renewed, err = w.l.renew(ctx, w.lease); err != nil {
			return false, err
		}
		if !renewed.alive {
			w.lease = clientv3.NoLease
		}
	}
	if w.lease == clientv3.NoLease {
		if w.lease, err = w.l.grant(ctx, w.token, w.seconds); err != nil {
			return false, err
		}
		w.renewed = start
	}
	when, then := append(p.isFirst(p.created), p.noHolder()), []clientv3.Op{w.put(holds, w.seconds, w.lease)}
	if p.key != w.key {
		when = append(when, clientv3.Compare(clientv3.CreateRevision(w.key), "=", 0))
		then = append(then, clientv3.OpDelete(p.key))
	}
	resp, err := w.l.txn(ctx, when, then, []clientv3.Op{p.get(), p.getBefore(p.created), p.getHolder()})
	if err != nil {
		return false, err
	}
	if renewed.alive && resp.Header.RaftTerm == renewed.term {
		w.renewed = start
	}
	if resp.Succeeded {
		w.taken(ctx)
		return true, nil
	}
	s, err := readOne(p.lock, ranged(resp, 0))
	if err != nil {
		return false, err
	}
	holder := ranged(resp, 2)
	if len(holder) > 0 && holder[0].Lease == int64(w.lease) && string(holder[0].Key) == w.key && isHolder(holder[0]) {
		w.taken(ctx) // by an earlier request, which had no answer
		return true, nil
	}
	before := ranged(resp, 1)
	if len(before) == 0 && len(holder) > 0 && string(holder[0].Value) < waits {
		before = holder
	}
	if s.created != p.created || len(before) == 0 {
		return false, errPlaceLost
	}
	p.lease = s.lease // another one if a move had no answer
	// A key that this package has not written counts as well.
	p.before = state{entry: entry{key: string(before[0].Key)}, created: before[0].CreateRevision}
	return false, nil
}

// taken ends the place of a waiter that has the lock.
func (w *waiter) taken(ctx context.Context) {
	p := w.place
	p.unwatch()
	if p.lease != w.lease {
		w.l.revokeLater(ctx, w.token, p.lease, p.seconds)
	}
	*p = place{}
}

// isHolder reports whether an entry is that of a holder.
func isHolder(kv *mvccpb.KeyValue) bool {
	return len(kv.Value) > len(holds) && string(kv.Value[:len(holds)]) == holds
}
