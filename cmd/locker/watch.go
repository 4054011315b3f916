package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/spf13/cobra"
)

const watchHelp = `Watch prints a line when it starts and then whenever the holder of the lock changes, or the number
of those that wait. It asks every --interval, and on backends that notify also at each release; what
happens between two looks is not seen. It goes on when the backend fails, and reports that once.

Ctrl-C ends it.`

const watchExample = `  locker watch -b redis://localhost nightly
  locker watch --json nightly | jq -r .owner`

func newWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "watch KEY",
		Short:   "Print who takes and releases a lock",
		Long:    watchHelp,
		Example: watchExample,
		Args:    oneKey,
	}
	interval := cmd.Flags().Duration("interval", time.Second, "time between two looks")
	asJSON := jsonFlag(cmd, "each change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < time.Millisecond {
			return fmt.Errorf("--interval %v is less than a millisecond", *interval)
		}
		b, inspector, err := openInspector(cmd)
		if err != nil {
			return err
		}
		defer b.Close()
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		w := &watcher{backend: b, inspector: inspector, key: args[0], interval: *interval}
		w.print = func(info locker.Info) error {
			now := time.Now()
			if *asJSON {
				s := stateOf(info)
				s.Time = &now
				return printJSON(cmd.OutOrStdout(), s)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), now.Format(time.TimeOnly), describe(info))
			return err
		}
		return w.watch(ctx)
	}
	return cmd
}

// untilSignal returns a context that a signal ends, with the error of that status as its cause.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if sig, ok := <-signals; ok {
			cancel(&statusError{status: statusSignal + int(sig.(syscall.Signal))})
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// watcher prints the changes of a lock.
type watcher struct {
	backend   *backend.Backend
	inspector locker.Inspector
	key       string
	interval  time.Duration
	print     func(locker.Info) error
}

func (w *watcher) watch(ctx context.Context) error {
	last, err := w.inspector.Inspect(ctx, w.key)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return backendError(w.backend, err)
	}
	if err := w.print(last); err != nil {
		return withStatus(statusFailed, "%w", err)
	}
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	released := w.subscribe(ctx)
	failing := false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		case <-released:
		}
		info, err := w.inspector.Inspect(ctx, w.key)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			if !failing {
				fmt.Fprintln(os.Stderr, "locker:", oneLine(backendError(w.backend, err)))
			}
			failing = true
			continue
		}
		if failing || info.Token != last.Token || info.Waiters != last.Waiters {
			if err := w.print(info); err != nil {
				return withStatus(statusFailed, "%w", err)
			}
		}
		last, failing = info, false
	}
}

// subscribe returns a channel that gets a value at each release, or nil if the backend does not
// notify. It tries again while the backend fails.
func (w *watcher) subscribe(ctx context.Context) <-chan struct{} {
	notifier, ok := w.inspector.(locker.Watcher)
	if !ok {
		return nil
	}
	released := make(chan struct{})
	go func() {
		for {
			woken, err := notifier.Watch(ctx, w.key)
			if errors.Is(err, errors.ErrUnsupported) || ctx.Err() != nil {
				return
			}
			for err == nil {
				select {
				case <-woken:
				case <-ctx.Done():
					return
				}
				select {
				case released <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-time.After(w.interval):
			case <-ctx.Done():
				return
			}
		}
	}()
	return released
}
