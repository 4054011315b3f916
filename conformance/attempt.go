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
)

// attempt is one run of a check of RunCache or RunCounter, with the history of its calls.
type attempt struct {
	began   time.Time
	mu      sync.Mutex // also guards the fields of the type that embeds the attempt
	history []string
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

// end ends the attempt with its result.
func (a *attempt) end(kind cacheResultKind, report string) { panic(cacheResult{kind, report}) }

// conclude runs an attempt of the check with that name, and returns its result.
func (a *attempt) conclude(name, rule, cause string, run func()) (r cacheResult) {
	defer func() {
		p := recover()
		switch end := p.(type) {
		case nil:
		case cacheResult:
			r = end
		default:
			r = cacheResult{cacheFailed, fmt.Sprintf("%s\n  panic: %v\n%s", a.historyText(), p, debug.Stack())}
		}
		if r.kind == cacheFailed {
			r.report = fmt.Sprintf("%s\n  rule          %s\n%s\n  common cause  %s", name, rule, r.report, cause)
		}
	}()
	run()
	return cacheResult{}
}

// called makes a call with ctx, or with a context that lasts long enough if ctx is nil, and returns
// the time when the call returned. It abandons a call that has not returned long after its context
// ended.
func called[T any](ctx context.Context, call func(ctx context.Context) (T, error)) (v T, end time.Time, err error) {
	if ctx == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), cachePatience)
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
	const late = 10 * time.Second
	timer := time.NewTimer(cachePatience + late)
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

// reportTo reports the result of a check to t.
func (r cacheResult) reportTo(t *testing.T, strict bool) {
	t.Helper()
	switch {
	case r.kind == cacheFailed, r.kind == cacheInconclusive && strict:
		t.Fatal(r.report)
	case r.kind != cachePassed:
		t.Skip(r.report)
	}
}
