package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// attempt is one run of a check of RunCache or RunCounter, with the history of its calls.
type attempt struct {
	tb                *harness.Recorder
	stretch           float64 // of the times that the check chooses
	name, rule, cause string

	began   time.Time
	mu      sync.Mutex // also guards the fields of the type that embeds the attempt
	history []string
}

// task returns a check of that name, which quotes a rule.
func task(name, rule, cause string, skip map[string]string, run func(a *attempt)) harness.Task {
	return harness.Task{Check: harness.Check{Name: name}, Try: func(tb testing.TB, stretch float64) *harness.Recorder {
		a := &attempt{stretch: stretch, name: name, rule: rule, cause: cause, began: time.Now()}
		return harness.Try(tb, name, a.historyText, func(r *harness.Recorder) {
			if reason := skip[name]; reason != "" {
				r.SkipFor(reason)
			}
			a.tb = r
			run(a)
		})
	}}
}

// stretched returns d, or if the check runs again, a longer time.
func (a *attempt) stretched(d time.Duration) time.Duration {
	return time.Duration(a.stretch * float64(d))
}

// note adds a line to the history.
func (a *attempt) note(format string, args ...any) {
	line := fmt.Sprintf("%+.3fs  ", time.Since(a.began).Seconds()) + fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.history = append(a.history, line)
}

func (a *attempt) historyText() string {
	const most = 30
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := a.history
	if n := len(lines) - most; n > 0 {
		lines = append([]string{fmt.Sprintf("(%d calls before)", n)}, lines[n:]...)
	}
	return "  history       " + strings.Join(lines, "\n                ")
}

// failed ends the check. The report has the history, and what was wanted and got.
func (a *attempt) failed(report string) {
	a.tb.Fatalf("%s\n  rule          %s\n%s\n  common cause  %s", a.name, a.rule, report, a.cause)
}

// void ends the check, which could not decide because the machine or the backend was too slow.
func (a *attempt) void(what string) {
	a.tb.Void(min(2*a.stretch, 16), what+"\n"+a.historyText())
}

// called makes a call with ctx, or with a context that lasts long enough if ctx is nil, and returns
// the time when the call returned. It abandons a call that has not returned long after its context
// ended.
func called[T any](ctx context.Context, call func(ctx context.Context) (T, error)) (v T, end time.Time, err error) {
	if ctx == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), harness.OpTimeout)
		defer cancel()
	}
	type reply struct {
		v   T
		end time.Time
		err error
	}
	returned := make(chan reply, 1)
	go func() {
		r := reply{err: errors.New("the call ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			r.end = time.Now()
			returned <- r
		}()
		r.v, r.err = call(ctx)
	}()
	late := harness.Leaving.Time
	timer := time.NewTimer(harness.OpTimeout + late)
	defer timer.Stop()
	left := context.AfterFunc(ctx, func() { timer.Reset(late) })
	defer left()
	select {
	case r := <-returned:
		return r.v, r.end, r.err
	case <-timer.C:
		return v, time.Now(), fmt.Errorf("no return %v after its context ended", late)
	}
}
