package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
)

// Config describes the backend under test.
type Config struct {
	// New returns a Locker with connections of its own to the backend at addr, as another process would
	// have; it closes them in tb.Cleanup. It is called a few times for the suite and once for each fault
	// check, always on a healthy link. An in-process backend may return the same Locker each time.
	New func(tb testing.TB, addr string) locker.Locker

	// Addr is the backend's TCP address. If it is empty, New ignores addr, and the checks that need
	// a network in between are skipped by name.
	Addr string

	// Granularity is how long past its ttl the backend may keep a lock: 0 for a backend that counts
	// milliseconds, about two seconds for one that counts seconds, and no less than the backend's
	// minimum ttl.
	Granularity time.Duration

	// Skip names checks that cannot pass on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// Run checks the backend that c describes. Each check is a subtest with its name, and all of them
// run at the same time. Run returns when they are done. If c itself is invalid, Run fails the test
// and runs no check.
//
// A failed check prints the rule of the contract that was broken, what was done, what was expected, what
// happened, and what commonly causes it. A check that could not decide is inconclusive, which
// counts as skipped, or as failed with LOCKER_CONFORMANCE=strict in the environment.
func Run(t *testing.T, c Config) {
	t.Helper()
	s, err := newSuite(t, c, checks())
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
	sum := summary{skipped: make(map[string]int), indirect: make(map[string]bool)}
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

// summary is the result of a run.
type summary struct {
	passed       int
	failed       []string        // by name
	indirect     map[string]bool // those of failed whose reason is not a wrong answer
	inconclusive []string        // with the reason
	skipped      map[string]int  // by reason
}

func (sum *summary) add(ck check, r *recorder) {
	switch {
	case r.Failed():
		sum.failed = append(sum.failed, ck.name)
		sum.indirect[ck.name] = r.isIndirect()
	case r.Skipped():
		sum.skipped[r.why()]++
	case r.Inconclusive():
		sum.inconclusive = append(sum.inconclusive, ck.name+" ("+r.why()+")")
	default:
		sum.passed++
	}
}

func (sum *summary) String() string {
	s := fmt.Sprintf("conformance: %d checks passed, %d failed", sum.passed, len(sum.failed))
	if len(sum.failed) > 1 {
		s += "; begin with " + plainest(sum.failed, sum.indirect)
	}
	if n := len(sum.inconclusive); n > 0 {
		s += fmt.Sprintf("; %d inconclusive: %s", n, strings.Join(slices.Sorted(slices.Values(sum.inconclusive)), ", "))
	}
	for _, reason := range slices.Sorted(maps.Keys(sum.skipped)) {
		s += fmt.Sprintf("; %d skipped: %s", sum.skipped[reason], reason)
	}
	return s
}

// plainest returns the failed check that shows most directly what is wrong; one mistake fails others as well.
// A wrong answer proves more than a late one or an error, and a check without faults more than one
// with them. Among equals these come first, then the order of the table.
func plainest(failed []string, indirect map[string]bool) string {
	first := []string{
		"exclusion/one-holder", "expiry/never-early", "release/only-the-owner", "extend/only-the-owner",
		"fault/connection-refused", "fault/release-paused",
	}
	for _, ck := range checks() {
		first = append(first, ck.name)
	}
	cost := func(name string) (c int) {
		if indirect[name] {
			c += 2
		}
		if strings.HasPrefix(name, "fault/") {
			c++
		}
		return c
	}
	return slices.MinFunc(failed, func(a, b string) int {
		return cmp.Or(cmp.Compare(cost(a), cost(b)), cmp.Compare(slices.Index(first, a), slices.Index(first, b)))
	})
}

// suite is one run of the checks over one Config.
type suite struct {
	config   Config
	checks   []check
	lockers  [3]locker.Locker
	lacks    map[needs]string // optional behaviour that the Lockers lack, with the reason
	quickest time.Duration    // of some operations, before the checks keep the backend busy
	lag      lag
}

// newSuite validates c and makes the three Lockers that the checks share.
func newSuite(tb testing.TB, c Config, list []check) (*suite, error) {
	if c.New == nil {
		return nil, errors.New("Config.New is nil: it has to return a Locker on the backend under test")
	}
	if c.Granularity < 0 {
		return nil, fmt.Errorf("Config.Granularity is %v: it cannot be negative; it says how long past its ttl "+
			"the backend may keep a lock", c.Granularity)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Skip)) {
		if !slices.ContainsFunc(list, func(ck check) bool { return ck.name == name }) {
			return nil, fmt.Errorf("Config.Skip names %q, and there is no such check%s", name, nearest(name, list))
		}
		if c.Skip[name] == "" {
			return nil, fmt.Errorf("Config.Skip gives no reason for %q", name)
		}
	}
	if c.Addr != "" {
		conn, err := net.DialTimeout("tcp", c.Addr, 10*time.Second)
		if err != nil {
			return nil, fmt.Errorf("Config.Addr: nobody answers at %q: %w", c.Addr, err)
		}
		conn.Close()
	}

	s := &suite{config: c, checks: list, lacks: make(map[needs]string)}
	for i := range s.lockers {
		l := c.New(tb, c.Addr)
		if v := reflect.ValueOf(l); l == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, fmt.Errorf("Config.New returned nil at call %d", i+1)
		}
		s.lockers[i] = l
	}
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	go s.lag.measure(ctx)
	if err := s.probe(); err != nil {
		return nil, err
	}
	if err := s.probeNetwork(tb); err != nil {
		return nil, err
	}
	if c.Addr == "" {
		s.lacks[needsNetwork] = "Config.Addr is empty, so there is no network to put faults into"
	}
	return s, nil
}

// nearest helps with a name that is no check.
func nearest(name string, list []check) string {
	group, _, _ := strings.Cut(name, "/")
	var same []string
	for _, ck := range list {
		if g, _, _ := strings.Cut(ck.name, "/"); g == group {
			same = append(same, ck.name)
		}
	}
	if len(same) == 0 {
		return ""
	}
	return "; of this group there are " + strings.Join(slices.SortedFunc(slices.Values(same), cmp.Compare), ", ")
}
