package harness

// How checks run, and when one that could not decide is tried again, counts as inconclusive, or fails.

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Task is a check of any suite, as Do runs it.
type Task struct {
	Check
	// Try runs the check once, with its times stretched.
	Try func(tb testing.TB, stretch float64) *Recorder
}

// Run runs the checks of list as subtests of t, and logs a summary.
func Run(t *testing.T, c Config, list []Check) {
	t.Helper()
	s, err := NewSuite(t, c, list)
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	Do(t, s.tasks())
}

// Do runs tasks as subtests of t, as many at a time as the budget allows, and logs a summary.
func Do(t *testing.T, tasks []Task) {
	t.Helper()
	strict := os.Getenv(strictVariable) == "strict"
	// t.Parallel would run no more subtests at a time than there are processors, and checks mostly
	// wait.
	var all, named sync.WaitGroup
	order := newTurns(len(tasks))
	named.Add(len(tasks))
	var mu sync.Mutex // guards sum, and keeps what a check prints in one piece
	sum := summary{skipped: make(map[string]int), indirect: make(map[string]bool)}
	for _, task := range tasks {
		sum.list = append(sum.list, task.Check)
		all.Go(func() {
			begin, first := sync.OnceFunc(named.Done), sync.OnceFunc(order.together.Done)
			defer begin() // go test -run may have left this check out
			defer first()
			t.Run(task.Name, func(t *testing.T) {
				begin()
				named.Wait() // go test -v prints the name of each subtest that begins
				r := ofProcess.judge(t, task, order, first)
				mu.Lock()
				if out := r.Printed(); out != "" {
					fmt.Fprint(t.Output(), out)
				}
				if r.Inconclusive() {
					fmt.Fprintf(t.Output(), "%s is inconclusive: %s\n", task.Name, r.Why())
				}
				sum.add(task.Check, r)
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

// turns orders the checks of a run: first those that may run beside others; then, one at a time,
// those that have to be alone and those that were inconclusive.
type turns struct {
	together sync.WaitGroup // checks whose first run has not ended
	alone    room
}

func newTurns(checks int) *turns {
	t := &turns{alone: room{size: 1}}
	t.together.Add(checks)
	return t
}

// Judge runs one check as Do does, but not as a subtest.
func Judge(tb testing.TB, task Task) *Recorder {
	return ofProcess.judge(tb, task, newTurns(0), func() {})
}

// judge runs a check until it is conclusive, or has been run often enough. It calls first when the
// check no longer runs beside others of its run. When it runs again, its times are stretched, and
// from the third time on no check of any run in the process runs beside it.
func (b *Budget) judge(tb testing.TB, task Task, t *turns, first func()) *Recorder {
	var r *Recorder
	stretch := 1.0
	try := func(places int) {
		b.checks.take(places)
		defer b.checks.give(places)
		r = task.Try(tb, stretch)
		stretch = r.next()
	}
	runs := 0
	if !task.Alone {
		try(1)
		runs++
	}
	first()
	if r != nil && !r.Inconclusive() {
		return r
	}
	t.together.Wait()
	t.alone.take(1)
	defer t.alone.give(1)
	for ; runs < tries && (r == nil || r.Inconclusive()); runs++ {
		if runs < 2 {
			try(1)
		} else {
			try(b.checks.size)
		}
	}
	return r
}

// tasks returns the checks of the suite. Those with faults, which take longest, come first.
func (s *Suite) tasks() []Task {
	var faults, others []Task
	for _, ck := range s.Checks {
		task := Task{ck, func(tb testing.TB, stretch float64) *Recorder {
			r := s.Start(tb, ck, stretch)
			r.Wait(CheckLimit)
			return r
		}}
		if ck.Needs&NeedsNetwork != 0 {
			faults = append(faults, task)
		} else {
			others = append(others, task)
		}
	}
	return append(faults, others...)
}

// RunAll runs all checks and returns their results by name.
func (s *Suite) RunAll(tb testing.TB) map[string]*Recorder {
	results := make(map[string]*Recorder, len(s.Checks))
	t := newTurns(len(s.Checks))
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, task := range s.tasks() {
		all.Go(func() {
			r := s.Budget.judge(tb, task, t, t.together.Done)
			mu.Lock()
			defer mu.Unlock()
			results[task.Name] = r
		})
	}
	all.Wait()
	return results
}
