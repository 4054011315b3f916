package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"runtime/pprof"
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

// checkLimit is how long a check may take before it counts as hung. None comes near it on a Locker that
// returns from its methods.
const checkLimit = 5 * time.Minute

// runAll runs all checks and returns what each came to, by name.
func (s *suite) runAll(tb testing.TB) map[string]*recorder {
	results := make(map[string]*recorder, len(s.checks))
	var t turns
	var all sync.WaitGroup
	var mu sync.Mutex
	t.together.Add(len(s.checks))
	for _, ck := range s.checks {
		all.Go(func() {
			r := s.judge(tb, ck, &t, t.together.Done)
			mu.Lock()
			defer mu.Unlock()
			results[ck.name] = r
		})
	}
	all.Wait()
	return results
}

// run runs one check and returns when it is done.
func (s *suite) run(tb testing.TB, ck check) *recorder {
	r := s.start(tb, ck)
	r.wait(checkLimit)
	return r
}

// start starts a check in a goroutine of its own, whose profiler labels tell it and all that it starts from
// every other.
func (s *suite) start(tb testing.TB, ck check) *recorder {
	r := newRecorder(tb, ck.name)
	e := newEnv(s, ck, r)
	r.explain = func() string { return e.explain("") }
	reason, skip := s.skips(ck)
	r.start(func() {
		if skip {
			r.skipFor(reason)
		}
		pprof.Do(context.Background(), pprof.Labels(leakLabel, e.id), func(context.Context) { e.guard(func() { ck.run(e) }) })
	})
	return r
}

// skips says why a check is not to be run, if so.
func (s *suite) skips(ck check) (reason string, skip bool) {
	if reason, skip = s.config.Skip[ck.name]; skip {
		return reason, true
	}
	for lack := needsNetwork; lack <= needsNoWait; lack <<= 1 {
		if reason, skip = s.lacks[lack]; skip && ck.needs&lack != 0 {
			return reason, true
		}
	}
	return "", false
}

func (ck check) String() string { return fmt.Sprintf("check %s", ck.name) }
