package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/fleet"
)

// workforce is some processes, fresh ones for each run: what a contender leaves behind is gone with them, and
// one that hangs is killed.
type workforce struct{ processes fleet.Fleet }

// patience is how long a run may take beyond what it was told to.
const patience = 10 * time.Second

// errHangs is the cause when that was not enough.
var errHangs = fmt.Errorf("not done %v after it should have been", patience)

// startFleet starts processes and returns when all are ready for orders.
func startFleet(ctx context.Context, processes int, j job) (*workforce, error) {
	started, err := fleet.Start(workerRole, processes)
	if err != nil {
		return nil, err
	}
	w := &workforce{started}
	if err := w.employ(ctx, j); err != nil {
		w.kill()
		return nil, fmt.Errorf("start: %w", err)
	}
	return w, nil
}

// employ gives each process its job and waits until all are ready.
func (w *workforce) employ(ctx context.Context, j job) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, p := range w.processes {
		j.Process = i
		if err := p.Send(j); err != nil {
			return err
		}
	}
	replies, err := fleet.Receive[reply](ctx, w.processes)
	for _, r := range replies {
		if r.Error != "" {
			err = errors.New(r.Error)
		}
	}
	return err
}

// do makes every process carry out an order, which should take no longer than takes.
func (w *workforce) do(ctx context.Context, o order, takes time.Duration) ([]reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, takes+patience, errHangs)
	defer cancel()
	o.Start = time.Now().Add(time.Duration(5+len(w.processes)) * time.Millisecond) // until all have the order
	if err := w.processes.Send(o); err != nil {
		return nil, err
	}
	return fleet.Receive[reply](ctx, w.processes)
}

// one is do for a workforce of one process, whose failures are errors.
func (w *workforce) one(ctx context.Context, o order, takes time.Duration) (reply, error) {
	replies, err := w.do(ctx, o, takes)
	if err == nil {
		err = firstError(replies)
	}
	if err != nil {
		return reply{}, err
	}
	return replies[0], nil
}

// kill ends the processes at once and returns when all are gone. They are killed rather than told: what
// they hold has an expiry, and a peer that hangs must not keep us.
func (w *workforce) kill() { w.processes.Kill() }
