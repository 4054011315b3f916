package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// inspectFaultChecks are about faults that affect Inspect and List. Those that hang are in
// hungCalls.
func inspectFaultChecks() []harness.Check {
	return []harness.Check{{
		Name:   "fault/inspect-unanswered",
		Rules:  []string{c10Faults, i5Error},
		Needs:  harness.NeedsInspect,
		Causes: "a transport error, or a reply that is not understood, reported as a free lock.",
		Run:    inspectUnanswered,
	}, {
		Name:  "fault/list-unanswered",
		Rules: []string{c10Faults, l4Errors},
		Needs: harness.NeedsList,
		Causes: "an iteration that ends without its error, so that a part is taken for all; an error of one lock that is skipped, " +
			"or that comes with its key although it concerns the connection.",
		Run: listUnanswered,
	}}
}

// unanswered are the faults after which there is no answer.
var unanswered = []faultproxy.Kind{faultproxy.DropReply, faultproxy.HalfReply, faultproxy.GarbageReply, faultproxy.ResetRequest,
	faultproxy.CloseRequest, faultproxy.GarbageRequest}

func inspectUnanswered(e *harness.Env) {
	f := newFaulty(e)
	key, _, held := f.prepared(harness.Long)
	for _, kind := range unanswered {
		f.eachStep(func(n int) bool {
			f.warm()
			x := f.arm(kind, n)
			r := f.Inspect(key)
			f.p.Disarm()
			if r.Err == nil {
				e.Agrees(r, r.Info, held, "its token holds the lock for ten minutes; an error is right as well")
			} else if !x.Acted() {
				f.Must(r, true, "no fault affected it")
			}
			onlyKey(e, r)
			again := f.insists("Inspect", key, "", 0)
			e.Agrees(again, again.Info, held, "its token holds the lock for ten minutes")
			return x.Acted()
		})
	}
	f.p.Refuse()
	e.Note("D's connections are cut, and new ones are refused")
	for range 2 {
		r := f.within(e.Allow(harness.Refused), "Inspect", key, "", 0)
		if r.Err == nil {
			e.Fail("D.Inspect = an error: the backend cannot be reached", "D.Inspect = "+r.Result())
		}
		onlyKey(e, r)
	}
	f.p.Heal(e.TB)
	f.warm()
}

func listUnanswered(e *harness.Env) {
	f := newFaulty(e)
	base := e.Key()
	var held []harness.Call
	for i := range 3 {
		r := f.insists("Acquire", fmt.Sprint(base, i), e.Token(), harness.Long)
		held = append(held, f.Must(r, true, "the key is fresh"))
	}
	for _, kind := range unanswered {
		// A List may make any number of requests, as many as the backend has pages.
		for n := 1; n <= 6; n++ {
			e.Forget()
			f.warm()
			x := f.arm(kind, n)
			r := f.Do("List", base, "", 0)
			f.p.Disarm()
			r, all := listed(r)
			switch {
			case r.Err == nil:
				for _, h := range held {
					contains(r, all, h)
				}
			case !x.Acted():
				f.Must(r, true, "no fault affected it")
			}
			if !x.Acted() {
				break
			}
		}
	}
	f.p.Refuse()
	e.Note("D's connections are cut, and new ones are refused")
	for range 2 {
		if r := f.within(e.Allow(harness.Refused), "List", base, "", 0); r.Err == nil {
			e.Fail("D.List yields an error without a key: the backend cannot be reached", "D.List = "+r.Result())
		}
	}
	f.p.Heal(e.TB)
	f.warm()
	r := f.insists("List", base, "", 0)
	r, all := listed(r)
	for _, h := range held {
		contains(r, all, h)
	}
	ctx, cancel := context.WithTimeout(e.Ctx, time.Hour)
	defer cancel()
	f.Must(f.DoContext(ctx, "List", base, "", 0), true, "D's link works again")
}
