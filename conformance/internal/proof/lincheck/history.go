package lincheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// Plan describes random histories.
type Plan struct {
	Lockers []locker.Locker // one for each client
	Shared  bool            // the first two clients have the same token
	Ops     int             // of each client
	TTLs    []time.Duration
	Timeout time.Duration // of an operation
	Haste   time.Duration // if not 0, half of the operations have less time than this
	Pause   time.Duration // the longest between two operations of a client
	Waits   bool          // Wait is used as well
	Fences  bool          // and Fence
}

// Run makes the clients call random operations on key, at the same time, and returns the history.
func (p Plan) Run(ctx context.Context, key string, seed uint64) []Op {
	began := time.Now()
	histories := make([][]Op, len(p.Lockers))
	var running sync.WaitGroup
	for client, l := range p.Lockers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(client)))
			for n := range p.Ops {
				op := p.choose(random, client, n, histories[client])
				if p.Pause > 0 {
					time.Sleep(time.Duration(random.Int64N(int64(p.Pause))))
				}
				timeout := p.Timeout
				if op.Hasty = p.Haste > 0 && random.IntN(2) == 0; op.Hasty {
					timeout = time.Duration(random.Int64N(int64(p.Haste)))
				}
				call(ctx, timeout, l, key, &op, began)
				histories[client] = append(histories[client], op)
			}
		})
	}
	running.Wait()
	history := slices.Concat(histories...)
	slices.SortFunc(history, func(a, b Op) int { return int(a.Call - b.Call) })
	return history
}

// choose returns the next operation of a client. One that holds the lock, as far as it knows, often
// uses that.
func (p Plan) choose(random *rand.Rand, client, n int, before []Op) Op {
	op := Op{Client: client, Token: fmt.Sprint("t", client)}
	if p.Shared && client < 2 {
		op.Token = "shared"
	} else if n > 0 {
		last := before[len(before)-1]
		op.Token = last.Token
		// A token is not used again if it may be released in the background.
		isSpent := last.Kind == Acquire && last.Outcome == Unknown || last.Kind == Wait && last.Outcome != Yes
		if isSpent || random.IntN(4) == 0 {
			op.Token = fmt.Sprint("t", client, ".", n)
		}
	}
	kinds := []Kind{Acquire, Acquire, Acquire, Extend, Release, Release}
	if p.Fences {
		kinds = append(kinds, Fence)
	}
	if p.Waits {
		kinds = append(kinds, Wait, Wait)
	}
	op.Kind = kinds[random.IntN(len(kinds))]
	if op.Kind != Release && op.Kind != Fence {
		op.TTL = p.TTLs[random.IntN(len(p.TTLs))]
	}
	return op
}

// call calls the operation and fills in how it went.
func call(ctx context.Context, timeout time.Duration, l locker.Locker, key string, op *Op, began time.Time) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var ok bool
	var err error
	op.Call = time.Since(began)
	switch op.Kind {
	case Acquire:
		ok, err = l.Acquire(ctx, key, op.Token, op.TTL)
	case Extend:
		ok, err = l.Extend(ctx, key, op.Token, op.TTL)
	case Release:
		ok, err = l.Release(ctx, key, op.Token)
	case Fence:
		op.Fence, ok, err = l.(locker.Fencer).Fence(ctx, key, op.Token)
	case Wait:
		var deadline time.Time
		deadline, err = l.(locker.Waiter).Wait(ctx, key, op.Token, op.TTL)
		ok = err == nil
		if ok {
			op.Until = deadline.Sub(began)
		}
		if errors.Is(err, locker.ErrHeld) { // it leaves the queue; see [Leniency]
			err = nil
		}
	}
	op.Return = time.Since(began)
	switch {
	case err != nil:
		op.Outcome = Unknown
	case ok:
		op.Outcome = Yes
	}
}
