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

// recorder is the testing.TB that a check works with. It keeps what the check said and what became of it, so
// that the suite can print it in one piece and the suite's own tests can look at it. Unlike those of a
// testing.T, its FailNow and SkipNow may be called from any goroutine: they end that goroutine.
type Recorder struct {
	testing.TB // the test outside, for TempDir and the like

	name    string
	explain func() string // what had been done, for a failure that does not say
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	failed   bool
	indirect bool // failed by what did not come in time, or by an error, and not by a wrong answer
	skipped  bool
	unsure   bool   // could not check
	reason   string // for being skipped or unsure
	sealed   bool   // given up on: nothing is recorded any more
	log      bytes.Buffer
	cleanups []func()
}

func newRecorder(tb testing.TB, name string) *Recorder {
	r := &Recorder{TB: tb, name: name, done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// start runs fn in a goroutine of its own, then its cleanups.
func (r *Recorder) start(fn func()) {
	go func() {
		defer close(r.done)
		defer r.cleanup()
		r.guard(fn)
	}()
}

// wait waits for the end of what start started. After limit it counts as failed and is left behind.
func (r *Recorder) Wait(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		r.Logf("%s has not come to an end in %v\n%s", r.name, limit, r.explain())
		r.mu.Lock()
		r.failed, r.sealed = true, true
		r.mu.Unlock()
		r.cancel()
	}
}

// guard runs fn and takes its panic for a failure.
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
		go func() { // one that ends its goroutine does not end the others
			defer close(done)
			r.guard(fn)
		}()
		<-done
	}
}

// output returns what was logged, each line indented as the testing package does.
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

// skipFor ends the goroutine and the check: reason says what the Locker cannot do that the check needs.
func (r *Recorder) skipFor(reason string) {
	r.mu.Lock()
	r.reason = reason
	r.mu.Unlock()
	r.Skipf("%s is skipped: %s", r.name, reason)
}

// inconclusive ends the goroutine: the check could not check what it is for. The first reason counts.
func (r *Recorder) inconclusive(reason string) {
	r.mu.Lock()
	if !r.unsure && !r.sealed {
		r.unsure, r.reason = true, reason
	}
	r.mu.Unlock()
	runtime.Goexit()
}

// Inconclusive reports whether the check could not check, and has not failed all the same.
func (r *Recorder) Inconclusive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsure && !r.failed && !r.skipped
}

// why is the reason for being skipped or inconclusive.
func (r *Recorder) Why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// isIndirect reports whether nothing but lateness or errors speaks against the Locker.
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
