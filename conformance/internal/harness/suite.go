package harness

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
	"testing"
	"time"

	"github.com/golockers/locker"
)

// Config is conformance.Config, where its fields are documented.
type Config struct {
	New         func(tb testing.TB, addr string) locker.Locker
	Addr        string
	Granularity time.Duration
	LoseData    func(ctx context.Context) error
	Skip        map[string]string
}

// Suite is one run of some checks on one backend.
type Suite struct {
	Config  Config
	Checks  []Check
	Lockers [3]locker.Locker // of clients A, B and C

	// Tamper, if not nil, gets every call that a check makes, and returns what the check gets.
	Tamper func(ctx context.Context, c Call) Call

	// Budget is what the checks of this suite share with those of others.
	Budget *Budget

	// Moment, if not 0, is how long each call takes at least: in a testing/synctest bubble, no time
	// passes while goroutines are busy.
	Moment time.Duration

	lacks    map[Needs]string // what the Lockers cannot do, with the reason
	quickest time.Duration    // the quickest of some operations, before the checks load the backend
	pace     pace
	stop     context.CancelFunc // of its measurement
	stopped  chan struct{}
}

// NewSuite validates c and makes the three Lockers that the checks share. From then on the suite
// measures how slow the machine is, until tb ends or Close is called.
func NewSuite(tb testing.TB, c Config, list []Check) (*Suite, error) {
	if c.New == nil {
		return nil, errors.New("Config.New is nil: it must return a Locker on the backend under test")
	}
	if c.Granularity < 0 {
		return nil, fmt.Errorf("Config.Granularity is %v: how long past its ttl the backend may keep a lock "+
			"cannot be negative", c.Granularity)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Skip)) {
		if !slices.ContainsFunc(list, func(ck Check) bool { return ck.Name == name }) {
			return nil, fmt.Errorf("Config.Skip names %q, which is not a check%s", name, nearest(name, list))
		}
		if c.Skip[name] == "" {
			return nil, fmt.Errorf("Config.Skip gives no reason for %q", name)
		}
	}
	if c.Addr != "" {
		conn, err := net.DialTimeout("tcp", c.Addr, 10*time.Second)
		if err != nil {
			return nil, fmt.Errorf("Config.Addr: cannot connect to %q: %w", c.Addr, err)
		}
		conn.Close()
	}

	s := &Suite{Config: c, Checks: list, Budget: ofProcess, lacks: make(map[Needs]string), stopped: make(chan struct{})}
	for i := range s.Lockers {
		l := c.New(tb, c.Addr)
		if v := reflect.ValueOf(l); l == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, fmt.Errorf("Config.New returned nil at call %d", i+1)
		}
		s.Lockers[i] = l
	}
	if err := s.probe(); err != nil {
		return nil, err
	}
	if err := s.probeNetwork(tb); err != nil {
		return nil, err
	}
	if c.Addr == "" {
		s.lacks[NeedsNetwork] = "Config.Addr is empty, so no faults can be injected"
	}
	if c.LoseData == nil {
		s.lacks[NeedsDataLoss] = "Config.LoseData is nil"
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	tb.Cleanup(s.Close)
	a, key, token := s.Lockers[0], RandomKey(), RandomToken()
	go func() {
		defer close(s.stopped)
		s.pace.measure(ctx, func(ctx context.Context) {
			defer func() { recover() }() // checks report panics
			ctx, cancel := context.WithTimeout(ctx, OpTimeout)
			defer cancel()
			a.Release(ctx, key, token)
		})
	}()
	return s, nil
}

// Close ends the measurement. A test that makes many suites must call it after each of them.
func (s *Suite) Close() {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Event.Time) // a broken Locker may not return
	defer cancel()
	select {
	case <-s.stopped:
	case <-ctx.Done():
	}
}

// nearest suggests checks in place of a name that is not one.
func nearest(name string, list []Check) string {
	group, _, _ := strings.Cut(name, "/")
	var same []string
	for _, ck := range list {
		if g, _, _ := strings.Cut(ck.Name, "/"); g == group {
			same = append(same, ck.Name)
		}
	}
	if len(same) == 0 {
		return ""
	}
	return "; the checks of this group are " + strings.Join(slices.SortedFunc(slices.Values(same), cmp.Compare), ", ")
}

// Lacks reports whether the Lockers cannot do what is needed.
func (s *Suite) Lacks(what Needs) bool {
	_, lacks := s.lacks[what]
	return lacks
}

// Start starts a check in a goroutine whose profiler label distinguishes it, and every goroutine
// that it starts, from all others.
func (s *Suite) Start(tb testing.TB, ck Check, stretch float64) *Recorder {
	r := newRecorder(tb, ck.Name)
	e := newEnv(s, ck, r, stretch)
	r.explain = func() string { return e.explain("") }
	reason, skip := s.skips(ck)
	r.start(func() {
		if skip {
			r.SkipFor(reason)
		}
		pprof.Do(context.Background(), pprof.Labels(LeakLabel, e.ID), func(context.Context) { e.Guard(func() { ck.Run(e) }) })
	})
	return r
}

// skips reports whether a check is not to be run, and why.
func (s *Suite) skips(ck Check) (reason string, skip bool) {
	if reason, skip = s.Config.Skip[ck.Name]; skip {
		return reason, true
	}
	for lack := NeedsNetwork; lack <= NeedsDataLoss; lack <<= 1 {
		if reason, skip = s.lacks[lack]; skip && ck.Needs&lack != 0 {
			return reason, true
		}
	}
	return "", false
}
