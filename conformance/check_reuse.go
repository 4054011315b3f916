package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// This check is about a token that is used again after its Wait had no answer.

func reuseChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/wait-then-acquire",
		Rules: []string{c5SameToken, c3NeverEarly},
		Needs: harness.NeedsWait,
		Causes: "a Wait without an answer whose token is released in the background until it is certain that it holds nothing, " +
			"although an Acquire has taken the lock with that token since.",
		Run: func(e *harness.Env) {
			kinds := []faultproxy.Kind{faultproxy.HoldRequest, faultproxy.HoldReply}
			e.Each(len(kinds), func(i int) { newFaulty(e).waitThenAcquire(kinds[i]) })
		},
	}}
}

// waitThenAcquire ends the context of a Wait for a free lock while a fault holds its nth request, and
// lets the same token acquire the lock. Then nothing that the Wait has left behind may release it.
func (f *faulty) waitThenAcquire(kind faultproxy.Kind) {
	e := f.Env
	f.eachStep(func(n int) bool {
		f.warm()
		key, token := e.Key(), e.Token()
		x := f.arm(kind, n)
		defer x.Release()
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		result := f.Waits(ctx, key, token, harness.Long)
		if r := f.stopped(x, result); r != nil {
			if r.Err == nil {
				f.insists("Release", key, token, 0)
			}
			return x.Acted()
		}
		cancel()
		if w := <-result; w.Err == nil || errors.Is(w.Err, locker.ErrHeld) {
			e.Inconclusive("D.Wait = %s, although it had no answer", w.Result())
		}
		// It may be an error for some time, and false while another process undoes the Wait.
		r := f.Do("Acquire", key, token, harness.Long)
		x.Release()
		f.carriedOut(x)
		for begun := time.Now(); r.Err != nil || !r.OK; r = f.Do("Acquire", key, token, harness.Long) {
			e.Overdue(harness.Healing, time.Since(begun)-cleanupWindow, e.Check.Causes, key,
				"D.Acquire = true: no other token holds the lock", fmt.Sprintf("D.Acquire = %s", r.Result()))
			e.Sleep(20 * time.Millisecond)
		}
		for end := time.Now().Add(reusedFor); time.Now().Before(end); {
			e.B.Blocked(key, "D.Acquire has returned true, and nobody has called Release since")
			e.Sleep(20 * time.Millisecond)
		}
		f.insists("Release", key, token, 0)
		b := e.B.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(cleanupWindow), "D has released it")
		e.B.Releases(key, b.Token, "B holds it")
		return true
	})
}

// reusedFor is longer than what undoes a Wait rests between two attempts.
const reusedFor = 1500 * time.Millisecond
