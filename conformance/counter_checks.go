package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker/window"
)

// The rules of a Counter, quoted from the documentation of package window.
const (
	counterOnce    = "Count adds n once, in one atomic step, and returns the sum."
	counterLooks   = "If n is 0, it changes nothing."
	counterTwice   = "A client that repeats a request may add n twice, but not more often."
	counterWindows = "Windows begin at the multiples of per on the backend's clock, so all processes agree on them."
	counterArrives = "A request that reaches the backend in the next window counts there."
	counterNothing = "Two windows after its last count, nothing is stored for a key. Nothing is ever stored without an expiry"
	counterExact   = "Keys are compared byte for byte. Counts with different keys or different window lengths are independent."
	counterContext = "When ctx ends, a method returns ctx's error"
	counterUnder   = "CountUnder is Count if the rule allows n more calls. Otherwise it leaves the count alone and counted is false."
	counterZero    = "If n is 0, it changes nothing, and counted reports whether the counts are within the limit."
	counterDown    = "After an error it is unknown whether n was added."
)

// counterBasicChecks are the checks within one window.
func counterBasicChecks() []counterCheck {
	return []counterCheck{
		{
			name: "count/adds", rule: counterOnce, run: checkCountAdds,
			cause: "adding 1 in place of n; a count for each process",
		},
		{
			name: "count/looks", rule: counterLooks, run: checkCountLooks,
			cause: "n = 0 that counts, or that is an error",
		},
		{
			name: "count/large", rule: counterOnce, run: checkCountLarge,
			cause: "numbers of 32 bits, or written as 1e+12",
		},
		{
			name: "count/concurrent", rule: counterOnce, run: checkCountConcurrent,
			cause: "reading, adding and writing in several steps; SETEX in place of INCR",
		},
		{
			name: "count/first-concurrent", rule: counterOnce, run: checkCountFirst,
			cause: "looking whether there is a count and setting the first one in two steps",
		},
		{
			name: "names/any", rule: counterExact, run: checkCountNames,
			cause: "names that are cut, trimmed, folded or escaped ambiguously",
		},
		{
			name: "names/lengths", rule: counterExact, run: checkCountLengths,
			cause: "a name without the length of the window",
		},
	}
}

func checkCountAdds(e *counterEnv) {
	key := e.key()
	first := e.a.counts(key, 1, longWindow).wants(1, 0)
	e.b.counts(key, 5, longWindow).unbroken(first).wants(6, 0)
	e.a.counts(key, 2, longWindow).unbroken(first).wants(8, 0)
}

func checkCountLooks(e *counterEnv) {
	key := e.key()
	first := e.a.counts(key, 0, longWindow).wants(0, 0)
	e.b.counts(key, 3, longWindow).unbroken(first).wants(3, 0)
	e.a.counts(key, 0, longWindow).unbroken(first).wants(3, 0)
	e.b.counts(key, 0, longWindow).unbroken(first).wants(3, 0)
}

func checkCountLarge(e *counterEnv) {
	key := e.key()
	first := e.a.counts(key, window.MaxN, longWindow)
	first.wants(window.MaxN, 0)
	for i := range int64(5) {
		e.b.counts(key, window.MaxN-1, longWindow).unbroken(first).wants(window.MaxN+(i+1)*(window.MaxN-1), 0)
	}
	e.a.counts(key, 0, window.MaxPer)
	e.a.counts(key, 1, window.MaxPer)
}

// Every count gets a different sum, and the last sum is the number of counts.
func checkCountConcurrent(e *counterEnv) {
	key := e.key()
	first := e.a.counts(key, 1, longWindow)
	e.wantDistinct(key, first, 8, 40)
}

// wantDistinct counts from several goroutines at once, after first.
func (e *counterEnv) wantDistinct(key string, first countReply, workers, each int) {
	replies := e.together(workers, each, func(c *counterClient) countReply { return c.tries(key, 1, first.rule.Per) })
	seen := make(map[int64]bool)
	for _, r := range replies {
		r.plausible().unbroken(first)
		if seen[r.counts.Current] || r.counts.Current <= first.counts.Current {
			e.fail(r, "a sum that no other call got")
		}
		seen[r.counts.Current] = true
	}
	e.b.counts(key, 0, first.rule.Per).unbroken(first).wants(first.counts.Current+int64(len(replies)), first.counts.Previous)
}

// together makes calls from several goroutines at once.
func (e *counterEnv) together(workers, each int, call func(*counterClient) countReply) []countReply {
	replies := make([][]countReply, workers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range replies {
		client := []*counterClient{e.a, e.b}[i%2]
		all.Go(func() {
			<-start
			for range each {
				replies[i] = append(replies[i], call(client))
			}
		})
	}
	close(start)
	all.Wait()
	return slices.Concat(replies...)
}

func checkCountFirst(e *counterEnv) {
	for range 20 {
		key := e.key()
		replies := e.together(4, 1, func(c *counterClient) countReply { return c.tries(key, 1, longWindow) })
		for _, r := range replies {
			r.plausible().unbroken(replies[0])
		}
		e.a.counts(key, 0, longWindow).unbroken(replies[0]).wants(int64(len(replies)), 0)
	}
}

func checkCountNames(e *counterEnv) {
	base := e.key()
	long := strings.Repeat("k", 1024-len(base)-1)
	var keys []string
	for _, end := range []string{
		"", " ", "\n", "\r\n", "\t", "\x00", "\x7f", "/", ":", "*", "?", "%", "%20", "+", "{}", "{a}", "}{", "}", "{",
		"\\", "'", `"`, "é", "e\u0301", "\u00a0", "\u2028", "\xff", "\xfe", "K", "k", "K\u200b", ":1", ":3600000",
		long + "1", long + "2", long[:300], long[:301],
	} {
		keys = append(keys, e.named(base+end))
	}
	first := e.a.counts(e.key(), 0, longWindow)
	for i, key := range keys {
		e.note("%s is %.100q", e.describeKey(key), key)
		e.a.counts(key, int64(i+1), longWindow).unbroken(first).wants(int64(i+1), 0)
	}
	for i, key := range keys {
		e.b.counts(key, 0, longWindow).unbroken(first).wants(int64(i+1), 0)
	}
}

func checkCountLengths(e *counterEnv) {
	key := e.key()
	first, other := e.a.counts(key, 1, longWindow).wants(1, 0), e.a.counts(key, 2, 2*longWindow).wants(2, 0)
	e.b.counts(key, 0, longWindow).unbroken(first).wants(1, 0)
	e.b.counts(key, 0, 2*longWindow).unbroken(other).wants(2, 0)
}

// counterUnderChecks are the checks of an Enforcer.
func counterUnderChecks() []counterCheck {
	under := []counterNeed{needsEnforcer}
	return []counterCheck{
		{
			name: "under/limit", rule: counterUnder, needs: under, run: checkUnderLimit,
			cause: "a count of calls that are denied; a limit that is off by one",
		},
		{
			name: "under/all-or-none", rule: counterUnder, needs: under, run: checkUnderAll,
			cause: "comparing the count before n is added",
		},
		{
			name: "under/looks", rule: counterZero, needs: under, run: checkUnderLooks,
			cause: "a look that is always within the limit, or never; n = 0 that counts",
		},
		{
			name: "under/concurrent", rule: counterUnder, needs: under, run: checkUnderConcurrent,
			cause: "looking and counting in two steps",
		},
		{
			name: "under/weighted", rule: counterUnder, needs: under, run: checkUnderWeighted,
			cause: "a weight that is rounded up, or that grows while the window passes; " +
				"a denied call that drops the window before",
		},
	}
}

func checkUnderLimit(e *counterEnv) {
	for _, fixed := range []bool{true, false} {
		key, rule := e.key(), window.Rule{Limit: 3, Per: longWindow, Fixed: fixed}
		first := e.a.under(key, 1, rule).wantsCounted(true)
		for i := range int64(6) {
			client := []*counterClient{e.a, e.b}[i%2]
			client.under(key, 1, rule).unbroken(first).wantsCounted(i < 2).wants(min(i+2, 3), 0)
		}
		e.a.counts(key, 0, longWindow).unbroken(first).wants(3, 0)
	}
}

// wantsCounted fails unless the reply is as it should be.
func (r countReply) wantsCounted(counted bool) countReply {
	if r.counted != counted {
		r.e.fail(r, fmt.Sprint(counted))
	}
	return r
}

func checkUnderAll(e *counterEnv) {
	key, rule := e.key(), window.Rule{Limit: 10, Per: longWindow}
	first := e.a.under(key, 7, rule).wantsCounted(true).wants(7, 0)
	e.b.under(key, 5, rule).unbroken(first).wantsCounted(false).wants(7, 0)
	e.b.under(key, 4, rule).unbroken(first).wantsCounted(false).wants(7, 0)
	e.a.under(key, 3, rule).unbroken(first).wantsCounted(true).wants(10, 0)
	e.a.under(key, 1, rule).unbroken(first).wantsCounted(false).wants(10, 0)
}

// A look reports whether the counts are within the limit, which they are not if others count without
// one. It changes nothing.
func checkUnderLooks(e *counterEnv) {
	for _, fixed := range []bool{true, false} {
		key, rule := e.key(), window.Rule{Limit: 3, Per: longWindow, Fixed: fixed}
		first := e.a.under(key, 0, rule).wantsCounted(true).wants(0, 0)
		for n := int64(1); n <= 5; n++ {
			e.a.counts(key, 1, longWindow).unbroken(first)
			client := []*counterClient{e.a, e.b}[n%2]
			client.under(key, 0, rule).unbroken(first).wantsCounted(n <= rule.Limit).wants(n, 0)
		}
	}
}

// A Counter may count and take back, so that concurrent calls are denied that would otherwise be
// allowed. But it must never allow too many, and in the end no count may be missing.
func checkUnderConcurrent(e *counterEnv) {
	// A limit is reached only once for each key. Of the first one the calls may come one after the
	// other, while clients open connections.
	for range 20 {
		e.underConcurrently()
	}
}

func (e *counterEnv) underConcurrently() {
	key, rule := e.key(), window.Rule{Limit: 20, Per: longWindow}
	first := e.a.under(key, 1, rule).wantsCounted(true)
	counted := int64(1)
	for _, r := range e.together(8, 8, func(c *counterClient) countReply { return c.triesUnder(key, 1, rule) }) {
		if r.plausible().unbroken(first); r.counted {
			if counted++; counted > rule.Limit {
				e.fail(r, fmt.Sprintf("false: it is the %dth of %d", counted, rule.Limit))
			}
		}
	}
	e.a.counts(key, 0, longWindow).unbroken(first).wants(counted, 0)
	for ; counted < rule.Limit; counted++ {
		e.b.under(key, 1, rule).unbroken(first).wantsCounted(true)
	}
	e.b.under(key, 1, rule).unbroken(first).wantsCounted(false).wants(rule.Limit, 0)
}

// The counts that come with each decision justify it. Calls that are denied do not change them, and
// the window before does not matter to a fixed rule.
func checkUnderWeighted(e *counterEnv) {
	per := e.stretched(time.Second)
	e.fresh(per)
	key, rule := e.key(), window.Rule{Limit: 10, Per: per}
	first := e.a.under(key, 10, rule).wantsCounted(true)
	other, fixed := e.key(), window.Rule{Limit: 10, Per: per, Fixed: true}
	e.a.under(other, 10, fixed).unbroken(first).wantsCounted(true)
	first.over()
	e.b.under(other, 10, fixed).isAfter(first, 1).wantsCounted(true).wants(10, 10)
	if r := e.b.under(key, 10, rule).isAfter(first, 1).wants(0, 10); r.counts.Left > per/2 {
		r.wantsCounted(false)
	} else {
		e.tooSlow()
	}
	seen := map[bool]bool{}
	var counted int64
	for {
		r := e.b.under(key, 1, rule)
		if r.after(first) != 1 {
			break
		}
		seen[r.counted] = true
		before := r.counts
		if r.counted {
			before.Current--
			counted++
		}
		r.wants(counted, 10)
		if rule.Allows(before, 1) != r.counted {
			e.fail(r, fmt.Sprintf("%v: of the limit of 10, %d were used", !r.counted, rule.Used(before)))
		}
		time.Sleep(per / 50)
	}
	if len(seen) < 2 {
		e.tooSlow()
	}
}
