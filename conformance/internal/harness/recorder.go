package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"
)

// Recorder is the testing.TB of a check. It records the check's output and result, so that the
// suite can print them in one piece, and tests can examine them. Unlike those of a testing.T, its
// FailNow and SkipNow may be called from any goroutine, which they end.
type Recorder struct {
	testing.TB // of the suite, for TempDir and the like

	name    string
	explain func() string // the history, for failures that are not printed by Env
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	failed   bool
	indirect bool // failed because of lateness or an error, not of a wrong answer
	skipped  bool
	unsure   bool    // could not decide
	stretch  float64 // for the next run, if this one is unsure
	again    bool    // not the check's first run
	reason   string  // for being skipped or unsure
	sealed   bool    // hung: nothing more is recorded
	log      bytes.Buffer
	cleanups []func()
}

func newRecorder(tb testing.TB, name string) *Recorder {
	r := &Recorder{TB: tb, name: name, done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Try runs fn as a check of that name, and returns when it has ended. Explain returns what the check has
// done so far.
func Try(tb testing.TB, name string, explain func() string, fn func(r *Recorder)) *Recorder {
	r := newRecorder(tb, name)
	r.explain = explain
	r.start(func() { fn(r) })
	r.Wait(CheckLimit)
	return r
}

// start runs fn, and then the cleanups, in a goroutine.
func (r *Recorder) start(fn func()) {
	go func() {
		defer close(r.done)
		defer r.cleanup()
		r.guard(fn)
	}()
}

// Wait waits for the check to end. After limit the check counts as failed and is abandoned.
func (r *Recorder) Wait(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		r.Logf("%s has not ended within %v\n%s", r.name, limit, r.explain())
		r.mu.Lock()
		r.failed, r.sealed = true, true
		r.mu.Unlock()
		r.cancel()
	}
}

// guard runs fn. A panic in it fails the check.
func (r *Recorder) guard(fn func()) {
	defer func() {
		if v := recover(); v != nil {
			r.Errorf("panic: %v\n%s\n%s", v, r.explain(), debug.Stack())
		}
	}()
	fn()
}

func (r *Recorder) cleanup() {
	r.cancel()
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		fn := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		done := make(chan struct{})
		go func() { // a cleanup that calls Goexit must not prevent the others
			defer close(done)
			r.guard(fn)
		}()
		<-done
	}
}

// Printed returns what was logged.
func (r *Recorder) Printed() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *Recorder) Name() string             { return r.TB.Name() }
func (r *Recorder) Helper()                  {}
func (r *Recorder) Context() context.Context { return r.ctx }
func (r *Recorder) Output() io.Writer        { return (*recorderOutput)(r) }

func (r *Recorder) Cleanup(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, fn)
}

func (r *Recorder) Log(args ...any) { fmt.Fprintln(r.Output(), args...) }
func (r *Recorder) Logf(format string, args ...any) {
	fmt.Fprintf(r.Output(), format+"\n", args...)
}

func (r *Recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sealed {
		r.failed = true
	}
}

func (r *Recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *Recorder) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

// SkipFor ends the goroutine. The check is skipped: reason is what the Locker lacks.
func (r *Recorder) SkipFor(reason string) {
	r.mu.Lock()
	r.reason = reason
	r.mu.Unlock()
	r.Skipf("%s is skipped: %s", r.name, reason)
}

// Void ends the goroutine: the check cannot decide, and is to run again with its times stretched. The
// first reason counts.
func (r *Recorder) Void(stretch float64, reason string) {
	r.mu.Lock()
	if !r.unsure && !r.sealed {
		r.unsure, r.stretch, r.reason = true, stretch, reason
	}
	r.mu.Unlock()
	runtime.Goexit()
}

// Excused reports whether the check did not fail, but the machine was so slow that a Locker that is late
// may have passed it: it was run with stretched times, or could not decide.
func (r *Recorder) Excused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed && (r.again || r.unsure)
}

// next returns the stretch of the next run.
func (r *Recorder) next() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stretch
}

// Inconclusive reports whether the check could not decide. A failure takes precedence.
func (r *Recorder) Inconclusive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsure && !r.failed && !r.skipped
}

// Why returns the reason why the check was skipped or is inconclusive.
func (r *Recorder) Why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// isIndirect reports whether the check failed only because of lateness or errors.
func (r *Recorder) isIndirect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.indirect
}

func (r *Recorder) setIndirect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.indirect = true
}

func (r *Recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *Recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped && !r.failed
}

func (r *Recorder) Error(args ...any)                 { r.Log(args...); r.Fail() }
func (r *Recorder) Errorf(format string, args ...any) { r.Logf(format, args...); r.Fail() }
func (r *Recorder) Fatal(args ...any)                 { r.Log(args...); r.FailNow() }
func (r *Recorder) Fatalf(format string, args ...any) { r.Logf(format, args...); r.FailNow() }
func (r *Recorder) Skip(args ...any)                  { r.Log(args...); r.SkipNow() }
func (r *Recorder) Skipf(format string, args ...any)  { r.Logf(format, args...); r.SkipNow() }

type recorderOutput Recorder

func (o *recorderOutput) Write(p []byte) (int, error) {
	r := (*Recorder)(o)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sealed {
		r.log.Write(p)
	}
	return len(p), nil
}
