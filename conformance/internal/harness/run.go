package harness

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Run runs the checks of list as subtests of t, all of them at the same time, and logs a summary.
func Run(t *testing.T, c Config, list []Check) {
	t.Helper()
	s, err := NewSuite(t, c, list)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	strict := os.Getenv(strictVariable) == "strict"
	// t.Parallel would run no more subtests at a time than there are processors, and checks mostly
	// wait.
	var all, named sync.WaitGroup
	var order turns
	named.Add(len(list))
	order.together.Add(len(list))
	var mu sync.Mutex // guards sum, and keeps what a check prints in one piece
	sum := summary{list: list, skipped: make(map[string]int), indirect: make(map[string]bool)}
	for _, ck := range list {
		all.Go(func() {
			begin, first := sync.OnceFunc(named.Done), sync.OnceFunc(order.together.Done)
			defer begin() // go test -run may have left this check out
			defer first()
			t.Run(ck.Name, func(t *testing.T) {
				begin()
				named.Wait() // go test -v prints the name of each subtest that begins
				r := s.judge(t, ck, &order, first)
				mu.Lock()
				if out := r.Printed(); out != "" {
					fmt.Fprint(t.Output(), out)
				}
				if r.Inconclusive() {
					fmt.Fprintf(t.Output(), "%s is inconclusive: %s\n", ck.Name, r.Why())
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

// tries is the most times that a check is run while it is inconclusive.
const tries = 4

// turns orders the checks of a run: first those that may run beside others, all at once; then, one
// at a time, those that have to be alone and those that were inconclusive.
type turns struct {
	together sync.WaitGroup // checks whose first run has not ended
	alone    sync.Mutex
}

// judge runs a check until it is conclusive, or has been run often enough. It calls first when the
// check no longer runs beside others.
func (s *Suite) judge(tb testing.TB, ck Check, t *turns, first func()) *Recorder {
	var r *Recorder
	runs := 0
	if !ck.Alone {
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

// RunAll runs all checks and returns their results by name.
func (s *Suite) RunAll(tb testing.TB) map[string]*Recorder {
	results := make(map[string]*Recorder, len(s.Checks))
	var t turns
	var all sync.WaitGroup
	var mu sync.Mutex
	t.together.Add(len(s.Checks))
	for _, ck := range s.Checks {
		all.Go(func() {
			r := s.judge(tb, ck, &t, t.together.Done)
			mu.Lock()
			defer mu.Unlock()
			results[ck.Name] = r
		})
	}
	all.Wait()
	return results
}
