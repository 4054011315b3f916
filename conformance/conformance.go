package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
)

// Config says how to reach the backend under test.
type Config struct {
	// New returns a Locker with connections of its own to the backend at addr, as another process would
	// have; it closes them in tb.Cleanup. It is called a few times for the suite and once for each fault
	// check, always on a healthy link. An in-process backend may return the same Locker each time.
	New func(tb testing.TB, addr string) locker.Locker

	// Addr is the backend's TCP address. When it is empty, New ignores addr, and the checks that need a
	// network in between are skipped by name.
	Addr string

	// Granularity is how long past its ttl the backend may keep a lock: 0 for a backend that counts
	// milliseconds, about two seconds for one that counts seconds.
	Granularity time.Duration

	// Skip names checks that cannot hold on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// Run checks the backend that c describes, each check as a subtest by its name, all of them at the same
// time. It returns when they are done. What it finds wrong with c itself is one failure, and then no check
// is run.
//
// A failed check prints the rule of the contract that was broken, what was done, what was expected, what
// happened, and what commonly causes it.
func Run(t *testing.T, c Config) {
	t.Helper()
	s, err := newSuite(t, c, checks())
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	// Subtests that are parallel by t.Parallel would be as many as there are processors, and the suite
	// mostly waits.
	var all, named sync.WaitGroup
	named.Add(len(s.checks))
	var mu sync.Mutex // also: what a check prints must stay in one piece
	sum := summary{skipped: make(map[string]int)}
	for _, ck := range s.checks {
		all.Go(func() {
			begin := sync.OnceFunc(named.Done)
			defer begin() // go test -run may have left it out
			t.Run(ck.name, func(t *testing.T) {
				begin()
				named.Wait() // -v names each subtest that begins, which must not come between the lines of another
				r := s.run(t, ck)
				mu.Lock()
				if out := r.output(); out != "" {
					fmt.Fprint(t.Output(), out)
				}
				sum.add(s, ck, r)
				mu.Unlock()
				switch {
				case r.Failed():
					t.FailNow()
				case r.Skipped():
					t.SkipNow()
				}
			})
		})
	}
	all.Wait()
	t.Log(sum.String())
}

// summary is what a run came to.
type summary struct {
	passed  int
	failed  []string       // by name
	skipped map[string]int // by reason
}

func (sum *summary) add(s *suite, ck check, r *recorder) {
	switch {
	case r.Failed():
		sum.failed = append(sum.failed, ck.name)
	case r.Skipped():
		reason, _ := s.skips(ck)
		sum.skipped[reason]++
	default:
		sum.passed++
	}
}

func (sum *summary) String() string {
	s := fmt.Sprintf("conformance: %d checks passed, %d failed", sum.passed, len(sum.failed))
	if len(sum.failed) > 1 {
		s += "; begin with " + plainest(sum.failed)
	}
	for _, reason := range slices.Sorted(maps.Keys(sum.skipped)) {
		s += fmt.Sprintf("; %d skipped: %s", sum.skipped[reason], reason)
	}
	return s
}

// plainest is which of the failed checks says most directly what is wrong. A mistake fails others, too.
func plainest(failed []string) string {
	for _, name := range []string{
		"exclusion/one-holder", "expiry/never-early", "release/only-the-owner", "extend/only-the-owner",
		"fault/connection-refused", "fault/release-paused",
	} {
		if slices.Contains(failed, name) {
			return name
		}
	}
	for _, ck := range checks() {
		if slices.Contains(failed, ck.name) {
			return ck.name
		}
	}
	return failed[0]
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
