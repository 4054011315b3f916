package stampede

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/golockers/locker/internal/fleet"
)

// workers are the processes of the fleet, as the parent sees them.
type workers struct {
	fleet.Fleet
	seen func(process int, now sample)
}

// startWorkers starts the processes and returns when they are ready.
func startWorkers(processes int, cfg config, seen func(process int, now sample)) (*workers, error) {
	started, err := fleet.Start(role, processes)
	if err != nil {
		return nil, err
	}
	w := &workers{started, seen}
	replies, err := w.exchange(context.Background(), cfg)
	for _, r := range replies {
		if r.Error != "" {
			err = errors.New(r.Error)
		}
	}
	if err != nil {
		w.Kill()
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	return w, nil
}

// exchange sends a message to every process and waits for all answers. The error is a
// fleet.ErrEnded if a process has ended.
func (w *workers) exchange(ctx context.Context, message any) ([]reply, error) {
	if err := w.Send(message); err != nil {
		return nil, fmt.Errorf("%w: %w", fleet.ErrEnded, err)
	}
	replies, errs := make([]reply, len(w.Fleet)), make([]error, len(w.Fleet))
	var all sync.WaitGroup
	for i, p := range w.Fleet {
		all.Go(func() {
			for {
				var r reply
				if errs[i] = p.Receive(ctx, &r); errs[i] == nil && r.Now != nil {
					w.seen(i, *r.Now)
					continue
				}
				replies[i] = r
				return
			}
		})
	}
	all.Wait()
	return replies, errors.Join(errs...)
}

// stop ends the processes and waits for them. It kills those that do not end by themselves.
func (w *workers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience)
	defer cancel()
	_ = w.Send(command{})
	for _, p := range w.Fleet {
		for err := error(nil); err == nil; {
			err = p.Receive(ctx, new(reply)) // what was under way
		}
	}
	w.Kill()
}
