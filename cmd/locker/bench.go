package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const benchHelp = `Bench measures what the backend does from where you stand, with one process:

  round trip  one request at a time, which asks for the holder of a lock
  cycle       every goroutine takes and releases a lock of its own
  hand-off    the goroutines compete for --keys locks; the time from when one of them begins to
              release the lock until the next has it

Each takes a third of --duration. The locks have random names that begin with "bench/", and are
released at the end. The load is real: do not run it beside users who would mind.`

const benchExample = `  locker bench -b redis://localhost
  locker bench -b memcache://localhost --goroutines 64 --keys 8 -d 30s
  locker bench -b redis://localhost -o report.html`

// benchFlags are the flags of bench.
type benchFlags struct {
	goroutines, keys int
	duration         time.Duration
	output           string
	json             *bool
}

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure the locks of a backend",
		Long:    benchHelp,
		Example: benchExample,
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&f.goroutines, "goroutines", 8, "how many take locks at a time")
	flags.IntVar(&f.keys, "keys", 1, "how many locks they compete for")
	flags.DurationVarP(&f.duration, "duration", "d", 10*time.Second, "how long it takes")
	flags.StringVarP(&f.output, "output", "o", "", "also write a report, a file that ends with .html or .svg")
	f.json = jsonFlag(cmd, "each measurement")
	_ = cmd.MarkFlagFilename("output", "html", "svg")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		b, err := open(cmd, f.goroutines+1)
		if err != nil {
			return err
		}
		defer b.Close()
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		m := &measurement{backend: b, flags: f, tick: func() {}}
		if term.IsTerminal(int(os.Stderr.Fd())) {
			m.tick = newProgress(f.duration, os.Stderr)
		}
		results, err := m.measure(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return backendError(b, err)
		}
		r := report{Backend: b.Name, Goroutines: f.goroutines, Keys: f.keys, Date: time.Now(), Results: results}
		if err := r.print(cmd.OutOrStdout(), *f.json, term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""); err != nil {
			return withStatus(statusFailed, "%w", err)
		}
		if f.output != "" {
			if err := r.write(f.output); err != nil {
				return withStatus(statusFailed, "cannot write the report: %w", err)
			}
		}
		return nil
	}
	return cmd
}

func (f *benchFlags) check() error {
	const most = 10_000
	ending := filepath.Ext(f.output)
	switch {
	case f.goroutines < 2 || f.goroutines > most:
		return fmt.Errorf("--goroutines %d is not between 2 and %d", f.goroutines, most)
	case f.keys < 1:
		return fmt.Errorf("--keys %d is less than 1", f.keys)
	case f.goroutines < 2*f.keys:
		return fmt.Errorf("--goroutines must be at least %d, twice --keys: otherwise no lock is handed off", 2*f.keys)
	case f.duration < 100*time.Millisecond:
		return fmt.Errorf("--duration %v is less than 100ms", f.duration)
	case f.output != "" && ending != ".html" && ending != ".svg":
		return errors.New("--output must end with .html or .svg")
	}
	return nil
}

// newProgress returns a function that moves a progress bar to where the time is. The first call starts
// it.
func newProgress(d time.Duration, w io.Writer) func() {
	bar := progressbar.NewOptions64(int64(d), progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(40),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription("measuring"),
		progressbar.OptionSetElapsedTime(false), progressbar.OptionSetPredictTime(false))
	start := time.Now()
	return func() { _ = bar.Set64(int64(min(time.Since(start), d))) }
}
