package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The mutants prove that each check can fail. That each answer which a check asks for counts is proved here: by
// Lockers that do everything right and, to the one who asks at one place of a check, say something else. How
// many of these lies a check notices is in the table below; it is less when an assertion is deleted.

// lie is what is said at one place of a check whenever something else is true.
type lie struct{ place, truth, answer string }

// lies are what may be said in place of each answer.
var lies = map[string][]string{
	"yes":              {"no", "an error"},
	"no":               {"yes", "an error"},
	"ctx has ended":    {"yes", "no", "an error"},
	"granted":          {"an error", "granted until long ago", "granted for an hour more", "nothing"},
	"the line is left": {"granted", "an error", "held", "ctx has ended", "nothing"},
	"a number":         {"no", "number 0", "a huge number", "an error"},
	"no number":        {"a huge number", "an error"},
	"a channel":        {"an error", "a silent channel", "a closed channel"},
}

// noticed is how many lies each check notices, on a Locker of the tests and on those of other ways. A check that
// comes to ask for more notices more: -v says how many.
var noticed = map[string]int{
	"context/cancelled-midway":                6,
	"context/cancelled-midway, slow":          6,
	"context/deadline-ahead":                  10,
	"context/deadline-ahead, very slow":       12,
	"context/done-before":                     21,
	"context/no-late-success, slow":           4,
	"context/nothing-left":                    4,
	"exclusion/no-lost-update":                5,
	"exclusion/one-attempt":                   6,
	"exclusion/one-holder":                    22,
	"exclusion/one-winner-on-a-free-key":      5,
	"exclusion/one-winner-on-an-expired-key":  6,
	"exclusion/owner-is-the-token":            14,
	"exclusion/refused-attempts-cost-nothing": 18,
	"expiry/any-ttl":                          12,
	"expiry/any-ttl, with limits":             23,
	"expiry/never-early":                      6,
	"expiry/not-late":                         8,
	"expiry/rounds-up":                        13,
	"expiry/winner-owns":                      13,
	"extend/after-expiry":                     6,
	"extend/after-release":                    10,
	"extend/after-takeover":                   12,
	"extend/atomic":                           15,
	"extend/keeps-alive":                      10,
	"extend/longer":                           8,
	"extend/only-the-owner":                   18,
	"extend/replaces":                         8,
	"extend/shorter":                          8,
	"fence/context":                           7,
	"fence/grows":                             57,
	"fence/in-order":                          6,
	"fence/moves-nothing":                     8,
	"fence/only-the-holder":                   36,
	"fence/stale-holder":                      13,
	"names/any":                               12,
	"names/any-token":                         12,
	"names/bookkeeping":                       20,
	"names/exact":                             8,
	"names/exact-tokens":                      10,
	"names/hashed":                            8,
	"names/independent":                       20,
	"release/after-expiry":                    4,
	"release/after-takeover":                  14,
	"release/atomic":                          14,
	"release/frees-at-once":                   4,
	"release/from-another-client":             14,
	"release/only-the-owner":                  10,
	"release/twice":                           12,
	"sametoken/after-loss":                    16,
	"sametoken/again":                         12,
	"sametoken/counts-from-the-last":          8,
	"sametoken/never-refused":                 6,
	"wait/any-name":                           10,
	"wait/any-name, with limits":              15,
	"wait/cancelled":                          20,
	"wait/context":                            14,
	"wait/deadline":                           12,
	"wait/first-leaves":                       8,
	"wait/free-at-once":                       30,
	"wait/holder-vanishes":                    10,
	"wait/in-turn":                            8,
	"wait/not-passed":                         10,
	"wait/own-ttl":                            10,
	"wait/place-kept":                         8,
	"wait/storm":                              22,
	"wait/token-in-line":                      34,
	"wait/unsupported, without a line":        15,
	"watch/any-name":                          7,
	"watch/any-name, with limits":             10,
	"watch/channel":                           7,
	"watch/ends-with-context":                 4,
	"watch/first-release":                     6,
	"watch/handed-over":                       10,
	"watch/every-release":                     8,
	"watch/no-missed-release":                 17,
	"watch/only-its-key":                      8,
	"watch/wakes-all":                         12,
}

// liar is what a correct Locker's answers go through.
type liar struct {
	over chan struct{} // closed when the check is over

	mu   sync.Mutex
	tell lie
	true map[string][]string // by place, what was true
}

// askers are the files of this package that ask on behalf of a place.
var askers = []string{"call.go", "env.go", "check.go", "recorder.go", "probe.go", "conformance.go"}

// place is where the answer goes to: the lines of the check and of what it calls.
func place() string {
	pcs := make([]uintptr, 40)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var lines []string
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		file := filepath.Base(frame.File)
		if !strings.Contains(frame.Function, "/conformance.") || slices.Contains(askers, file) {
			continue
		}
		if !strings.HasSuffix(file, "_test.go") {
			lines = append(lines, fmt.Sprintf("%s:%d", file, frame.Line))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, " in ")
}

// says returns what is said to the one who asks when truth is true.
func (l *liar) says(truth string) string { return l.tells("", place(), truth) }

func (l *liar) tells(who, at, truth string) string {
	if at == "" {
		return truth
	}
	at = who + at
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.true[at], truth) {
		l.true[at] = append(l.true[at], truth)
	}
	if at == l.tell.place && truth == l.tell.truth {
		return l.tell.answer
	}
	return truth
}

var errLie = errors.New("the backend is down")

// truth is the first of the answers of which yes or no is one.
func truth(ok bool, err error, yes, no string) string {
	switch {
	case err != nil:
		return "ctx has ended"
	case ok:
		return yes
	}
	return no
}

// through lets all that f says go through l.
func (f *fake) through(l *liar) {
	say := func(ok bool, err error) (bool, error) {
		switch said := l.says(truth(ok, err, "yes", "no")); said {
		case "yes", "no":
			return said == "yes", nil
		case "an error":
			return false, errLie
		}
		return ok, err
	}
	acquire, extend, release, watch, wait, fence := f.acquire, f.extend, f.release, f.watch, f.wait, f.fence
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return say(acquire(ctx, key, token, ttl))
	}
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return say(extend(ctx, key, token, ttl))
	}
	f.release = func(ctx context.Context, key, token string) (bool, error) { return say(release(ctx, key, token)) }
	f.fence = func(ctx context.Context, key, token string) (uint64, bool, error) {
		n, ok, err := fence(ctx, key, token)
		switch l.says(truth(ok, err, "a number", "no number")) {
		case "yes":
			return n, true, nil
		case "no":
			return 0, false, nil
		case "number 0":
			return 0, true, nil
		case "a huge number":
			return n + 1<<40, true, nil
		case "an error":
			return 0, false, errLie
		}
		return n, ok, err
	}
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		deadline, err := wait(ctx, key, token, ttl)
		was := truth(true, err, "granted", "")
		if errors.Is(err, locker.ErrHeld) {
			was = "the line is left"
		}
		// Those that wait in the background are told apart by their Locker.
		switch said := l.tells(fmt.Sprintf("Locker %d at ", f.id), place(), was); said {
		case was:
		case "yes", "granted":
			return time.Now().Add(ttl), nil
		case "no", "an error":
			return time.Time{}, errLie
		case "granted until long ago":
			return deadline.Add(-2 * max(ttl, time.Hour)), nil
		case "granted for an hour more":
			return deadline.Add(time.Hour), nil
		case "held":
			return time.Time{}, locker.ErrHeld
		case "ctx has ended":
			return time.Time{}, ctx.Err()
		case "nothing":
			select {
			case <-l.over:
			case <-time.After(10 * time.Second):
			}
			return time.Time{}, errLie
		}
		return deadline, err
	}
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		ch, err := watch(ctx, key)
		switch l.says(truth(true, err, "a channel", "")) {
		case "yes", "a silent channel":
			return make(chan struct{}, 1), nil
		case "no", "an error":
			return nil, errLie
		case "a closed channel":
			closed := make(chan struct{}, 1)
			close(closed)
			return closed, nil
		}
		return ch, err
	}
}

// lied runs a check on Lockers that are as alter makes them, correct in their own way, and lie as l says.
func lied(t *testing.T, ck check, alter func(f *fake), tell lie) (*recorder, *liar) {
	l := &liar{over: make(chan struct{}), true: make(map[string][]string)}
	s, err := newSuite(t, fakes(func(f *fake) { alter(f); f.through(l) }), []check{ck})
	require.NoError(t, err)
	l.mu.Lock()
	l.tell = tell
	l.mu.Unlock()
	r := s.start(t, ck)
	context.AfterFunc(r.Context(), func() { close(l.over) })
	r.wait(checkLimit)
	return r, l
}

// ways are correct Lockers of other kinds, for the checks that ask them for more.
var ways = []struct {
	name   string
	checks []string
	alter  func(f *fake)
}{{
	name: "with limits", checks: []string{"expiry/any-ttl", "wait/any-name", "watch/any-name"}, alter: limited,
}, {
	name: "slow", checks: []string{"context/cancelled-midway", "context/no-late-success"},
	alter: func(f *fake) { slowly(f, fixed(10*time.Millisecond), fixed(0)) },
}, {
	name: "very slow", checks: []string{"context/deadline-ahead"},
	alter: func(f *fake) { slowly(f, fixed(350*time.Millisecond), fixed(0)) },
}, {
	name: "without a line", checks: []string{"wait/unsupported"},
	alter: func(f *fake) {
		f.waits(func(context.Context, string, string, time.Duration) (time.Time, error) {
			return time.Time{}, errors.ErrUnsupported
		})
	},
}}

// limited makes f say what it cannot do.
func limited(f *fake) {
	acquire, extend, wait, watch := f.acquire, f.extend, f.wait, f.watch
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if ttl > 31*24*time.Hour && ctx.Err() == nil {
			return false, locker.ErrInvalidTTL
		}
		return acquire(ctx, key, token, ttl)
	}
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if ttl > 31*24*time.Hour && ctx.Err() == nil {
			return false, locker.ErrInvalidTTL
		}
		return extend(ctx, key, token, ttl)
	}
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if len(key) > 200 && ctx.Err() == nil {
			return time.Time{}, errors.ErrUnsupported
		}
		return wait(ctx, key, token, ttl)
	}
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if len(key) > 200 && ctx.Err() == nil {
			return nil, errors.ErrUnsupported
		}
		return watch(ctx, key)
	}
}

// tellAll runs a check once for each lie that may be told to it, some at the same time, and returns how many it
// noticed, and the others.
func tellAll(t *testing.T, room chan struct{}, ck check, alter func(f *fake)) (count int, missed []string) {
	r, l := lied(t, ck, alter, lie{})
	if !assert.False(t, r.Failed(), "without a lie: %s", r.output()) {
		return 0, nil
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for at, truths := range l.true {
		for _, truth := range truths {
			for _, answer := range lies[truth] {
				all.Go(func() {
					room <- struct{}{}
					defer func() { <-room }()
					r, _ := lied(t, ck, alter, lie{at, truth, answer})
					mu.Lock()
					defer mu.Unlock()
					if r.Failed() {
						count++
					} else {
						missed = append(missed, fmt.Sprintf("%s is told %s where %s is true", at, answer, truth))
					}
				})
			}
		}
	}
	all.Wait()
	slices.Sort(missed)
	return count, missed
}

// Not beside other tests. What a check asks, and what a lie leads to, may be different on a busy machine, so a check
// that noticed too few is asked again when the others are done.
func TestEveryAnswerCounts(t *testing.T) {
	type scene struct {
		name   string
		ck     check
		alter  func(f *fake)
		count  int
		missed []string
	}
	var scenes []*scene
	for _, ck := range checks() {
		if ck.needs&needsNetwork != 0 {
			continue
		}
		scenes = append(scenes, &scene{name: ck.name, ck: ck, alter: func(*fake) {}})
		for _, way := range ways {
			if slices.Contains(way.checks, ck.name) {
				scenes = append(scenes, &scene{name: ck.name + ", " + way.name, ck: ck, alter: way.alter})
			}
		}
	}
	room := make(chan struct{}, 100)
	var all sync.WaitGroup
	for _, s := range scenes {
		all.Go(func() { s.count, s.missed = tellAll(t, room, s.ck, s.alter) })
	}
	all.Wait()
	for _, s := range scenes {
		for try := 0; try < 3 && s.count < noticed[s.name]; try++ {
			s.count, s.missed = tellAll(t, room, s.ck, s.alter)
		}
		if s.count > 0 {
			assert.Contains(t, noticed, s.name, "the table is of all checks")
		}
		if s.count > noticed[s.name] {
			t.Logf("%q: %d, // more than the table says", s.name, s.count)
		}
		assert.GreaterOrEqual(t, s.count, noticed[s.name], "%s notices fewer lies than it did. What it does not notice, "+
			"mostly because it does not matter there:\n%s", s.name, strings.Join(s.missed, "\n"))
	}
}
