package conformance

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// runSuite runs the checks of list, each as a subtest with its name, all of them at the same time.
func runSuite(t *testing.T, c Config, list []check) {
	t.Helper()
	s, err := newSuite(t, c, list)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	// With t.Parallel only as many subtests as there are processors would run, and the suite mostly
	// waits.
	strict := os.Getenv(strictVariable) == "strict"
	var all, named sync.WaitGroup
	var order turns
	named.Add(len(s.checks))
	order.together.Add(len(s.checks))
	var mu sync.Mutex // also: what a check prints must stay in one piece
	sum := summary{list: list, skipped: make(map[string]int), indirect: make(map[string]bool)}
	for _, ck := range s.checks {
		all.Go(func() {
			begin, first := sync.OnceFunc(named.Done), sync.OnceFunc(order.together.Done)
			defer begin() // go test -run may have left it out
			defer first()
			t.Run(ck.name, func(t *testing.T) {
				begin()
				named.Wait() // -v names each subtest that begins, which must not come between the lines of another
				r := s.judge(t, ck, &order, first)
				mu.Lock()
				if out := r.output(); out != "" {
					fmt.Fprint(t.Output(), out)
				}
				if r.Inconclusive() {
					fmt.Fprintf(t.Output(), "%s is inconclusive: %s\n", ck.name, r.why())
				}
				sum.add(ck, r)
				mu.Unlock()
				switch {
				case r.Failed(), r.Inconclusive() && strict:
					t.FailNow()
				case r.Skipped(), r.Inconclusive():
					t.SkipNow()
				}
			})
		})
	}
	all.Wait()
	t.Log(sum.String())
}

// strictVariable is the environment variable that, set to strict, makes inconclusive checks fail.
const strictVariable = "LOCKER_CONFORMANCE"

// tries is how often a check is run that could not check, the first time included.
const tries = 4

// turns lets the checks run at the same time at first, and after that those that have to be alone, or were
// inconclusive beside the others, one by one.
type turns struct {
	together sync.WaitGroup // the checks that have not been run yet
	alone    sync.Mutex
}

// judge runs a check and, while it is inconclusive, again when it has the backend to itself. First is called
// when it is no longer one of those that run together.
func (s *suite) judge(tb testing.TB, ck check, t *turns, first func()) *recorder {
	var r *recorder
	runs := 0
	if !ck.alone {
		r = s.run(tb, ck)
		runs++
	}
	first()
	if r != nil && !r.Inconclusive() {
		return r
	}
	t.together.Wait()
	t.alone.Lock()
	defer t.alone.Unlock()
	for ; runs < tries && (r == nil || r.Inconclusive()); runs++ {
		r = s.run(tb, ck)
	}
	return r
}
