package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The mutants prove that each check can fail. TestEveryAnswerCounts proves that a check depends on
// each answer that it gets: it runs the check on a correct Locker, with one answer replaced by a
// lie. A lie that the check does not notice must be in testdata/unnoticed.txt with the reason, and
// nothing else may be.

// unnoticedFile lists lies that checks do not notice: a line with the reason, then an indented line
// for each of them, "<check>: <answer>: <lie>". If the reason begins with slowOnly, the answer need not
// occur.
const (
	unnoticedFile = "testdata/unnoticed.txt"
	slowOnly      = "Only on a slow machine"
)

// unnoticedLies are the listed lies of a check, and whether their answers must occur.
type unnoticedLies map[string]struct{ listed, occurs bool }

// lies are the possible lies for each kind of answer.
var lies = map[string][]string{
	"true":        {"false", "an error"},
	"false":       {"true", "an error"},
	"ctx's error": {"true", "false", "an error"},
	"an error":    {"true", "false"},
	"a deadline":  {"an error", "an earlier deadline", "a later deadline", "no answer"},
	"ErrHeld":     {"true", "an error", "only ErrHeld", "only ctx's error"},
	"a number":    {"false", "the number 0", "a larger number", "the number 2^63", "an error"},
	"no number":   {"a larger number", "an error"},
	"a channel":   {"an error", "a silent channel", "a closed channel"},
	"a holder":    {"an error", "free", "another holder", "another key", "a longer TTL", "a shorter TTL", "more waiters"},
	"free":        {"an error", "a holder", "another key"},
	"no locks":    {"an error", "a lock more"},
	"a list":      {"an error", "a lock less", "a lock more", "a lock twice", "another token"},
}

// kind returns what kind of answer c has.
func kind(ctx context.Context, c harness.Call) string {
	switch {
	case errors.Is(c.Err, locker.ErrHeld):
		return "ErrHeld"
	case c.Err != nil && ctx.Err() != nil:
		return "ctx's error"
	case c.Err != nil:
		return "an error"
	case c.Op == "Wait":
		return "a deadline"
	case c.Op == "Watch":
		return "a channel"
	case c.Op == "Fence" && c.OK:
		return "a number"
	case c.Op == "Fence":
		return "no number"
	case c.Op == "List" && len(c.Listed) == 0:
		return "no locks"
	case c.Op == "List":
		return "a list"
	case (c.Op == "Inspect" || c.Op == "Break") && c.Info.Token != "":
		return "a holder"
	case c.Op == "Inspect" || c.Op == "Break":
		return "free"
	}
	return fmt.Sprint(c.OK)
}

var errLie = errors.New("the backend is down")

// tell replaces the answer of c by a lie.
func tell(ctx context.Context, c harness.Call, lie string) harness.Call {
	c.OK, c.Err = false, nil
	switch lie {
	case "true":
		c.OK, c.Deadline, c.Fence, c.Wakes = true, time.Now().Add(c.TTL), 1<<40, make(chan struct{}, 1)
		if c.Op == "Inspect" || c.Op == "Break" {
			c.Info = locker.Info{Key: c.Key, Token: "another", TTL: time.Minute}
		}
	case "false":
		switch c.Op {
		case "Wait", "Watch": // they have no false
			c.Err = errLie
		case "Inspect", "Break", "List":
			c.OK, c.Info = true, locker.Info{Key: c.Key}
		}
	case "an error":
		c.Info = locker.Info{Key: c.Key}
		c.Err = errLie
	case "free":
		c.OK, c.Info = true, locker.Info{Key: c.Key}
	case "a holder", "another holder":
		c.OK, c.Info.Token = true, "another"
	case "another key":
		c.OK, c.Info.Key = true, c.Key+"x"
	case "a longer TTL":
		c.OK, c.Info.TTL = true, c.Info.TTL+time.Hour
	case "a shorter TTL":
		c.OK, c.Info.TTL = true, c.Info.TTL/8
	case "more waiters":
		c.OK, c.Info.Waiters = true, c.Info.Waiters+1
	case "a lock less":
		c.OK, c.Listed = true, c.Listed[:max(0, len(c.Listed)-1)]
	case "a lock more":
		free := locker.Info{Key: c.Key + "/more", Token: "another", TTL: time.Minute}
		c.OK, c.Listed = true, append(slices.Clone(c.Listed), harness.Entry{Info: free})
	case "a lock twice":
		c.OK, c.Listed = true, append(slices.Clone(c.Listed), c.Listed[:min(1, len(c.Listed))]...)
	case "another token":
		c.OK, c.Listed = true, slices.Clone(c.Listed)
		for i := range c.Listed {
			c.Listed[i].Token += "x"
		}
	case "only ErrHeld":
		c.Err = locker.ErrHeld
	case "only ctx's error":
		c.Err = ctx.Err()
	case "an earlier deadline":
		c.OK, c.Deadline = true, c.Deadline.Add(-2*max(c.TTL, time.Hour))
	case "a later deadline":
		c.OK, c.Deadline = true, c.Deadline.Add(time.Hour)
	case "the number 0":
		c.OK, c.Fence = true, 0
	case "the number 2^63":
		c.OK, c.Fence = true, 1<<63
	case "a larger number":
		c.OK, c.Fence = true, c.Fence+1<<40
	case "a silent channel":
		c.OK, c.Wakes = true, make(chan struct{}, 1)
	case "a closed channel":
		closed := make(chan struct{}, 1)
		close(closed)
		c.OK, c.Wakes = true, closed
	case "no answer":
		select {
		case <-c.Client.Env.Ctx.Done():
		case <-time.After(15 * time.Second):
		}
		c.Err = errLie
	default:
		panic("no lie " + lie)
	}
	return c
}

// liar sees all answers of a check, and replaces some by a lie.
type liar struct {
	answer, lie string // if not empty
	always      bool   // replace the answer each time, not just once

	told  atomic.Bool
	mu    sync.Mutex
	seen  map[[3]string]int // by key, operation and kind
	kinds map[string]string // the kinds of all answers, by name
}

// manyTimes is from where on equal answers for a key are not distinguished.
const manyTimes = 5

// name describes an answer independently of how goroutines are scheduled: by the operation, the
// kind, and how many such answers there were for the key. Polls, and the calls of checks that race,
// are not counted.
func (l *liar) name(ctx context.Context, c harness.Call) string {
	k := kind(ctx, c)
	name := c.Op + " = " + k
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.Poll:
		name += ", polling"
	case c.Quiet:
		name += ", racing"
	default:
		id := [3]string{c.Key, c.Op, k}
		l.seen[id]++
		if n := l.seen[id]; n > manyTimes {
			name += ", later for the key"
		} else if n > 1 {
			name += fmt.Sprintf(", number %d for the key", n)
		}
	}
	l.kinds[name] = k
	return name
}

func (l *liar) tamper(ctx context.Context, c harness.Call) harness.Call {
	name := l.name(ctx, c)
	if name != l.answer || !l.told.CompareAndSwap(false, true) && !l.always {
		return c
	}
	return tell(ctx, c, l.lie)
}

// scene is a check on a correct Locker.
type scene struct {
	name  string
	check harness.Check
	alter func(f *mutants.Fake)
	room  chan struct{}
}

// run runs the check. It returns whether that failed, and the answers.
func (s *scene) run(t *testing.T, l *liar) (*harness.Recorder, map[string]string) {
	t.Helper()
	s.room <- struct{}{}
	defer func() { <-s.room }()
	l.seen, l.kinds = make(map[[3]string]int), make(map[string]string)
	var r *harness.Recorder
	synctest.Test(t, func(t *testing.T) {
		suite, err := harness.NewSuite(t, mutants.Fakes(s.alter), []harness.Check{s.check})
		require.NoError(t, err)
		defer suite.Close()
		bubble(suite, 200*time.Microsecond)
		suite.Tamper = l.tamper
		r = suite.Start(t, s.check, 1)
		r.Wait(harness.CheckLimit)
		time.Sleep(time.Minute) // a check that has failed may leave calls behind
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return r, maps.Clone(l.kinds)
}

// notices reports whether the check notices a lie that it is told once, or else each time. It is
// not told if there is no such answer this time.
func (s *scene) notices(t *testing.T, answer, lie string) (noticed, told bool) {
	t.Helper()
	for _, always := range []bool{false, true} {
		l := &liar{answer: answer, lie: lie, always: always}
		if r, _ := s.run(t, l); r.Failed() {
			return true, true
		}
		if !l.told.Load() {
			break
		}
		told = true
	}
	return false, told
}

// repeats is how often a result that differs from the list is repeated: some lies are noticed only
// by chance, or not on a busy machine.
const repeats = 4

// compare tells the check each lie for each of its answers, and compares what it notices with what
// is listed.
func (s *scene) compare(t *testing.T, listed unnoticedLies) (problems []string) {
	t.Helper()
	r, kinds := s.run(t, &liar{})
	if r.Failed() {
		return []string{s.name + " fails without a lie: " + r.Printed()}
	}
	missing := func() (names []string) {
		for entry := range listed {
			answer, _, _ := strings.Cut(entry, ": ")
			if kinds[answer] == "" && listed[entry].occurs {
				names = append(names, entry)
			}
		}
		return names
	}
	for range repeats { // on a busy machine an answer may be missing
		if len(missing()) == 0 {
			break
		}
		_, more := s.run(t, &liar{})
		maps.Copy(kinds, more)
	}
	for _, entry := range missing() {
		problems = append(problems, fmt.Sprintf("%s: %s: is listed, but there is no such answer", s.name, entry))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for answer, kind := range kinds {
		for _, lie := range lies[kind] {
			all.Go(func() {
				entry := answer + ": " + lie
				everTold := false
				for try := 0; try < 2 || everTold && try <= repeats; try++ {
					noticed, told := s.notices(t, answer, lie)
					if told && noticed != listed[entry].listed {
						return
					}
					everTold = everTold || told
				}
				if !everTold { // only a machine that was slower got this answer
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if listed[entry].listed {
					problems = append(problems, fmt.Sprintf("%s: %s: is listed, but the check notices it", s.name, entry))
				} else {
					problems = append(problems, fmt.Sprintf("%s: %s: is not noticed, and not listed", s.name, entry))
				}
			})
		}
	}
	all.Wait()
	return problems
}

// Not parallel to other tests: on a busy machine the answers differ.
func TestEveryAnswerCounts(t *testing.T) {
	testserver.Variant(t, "TestMutants shows that each check can fail")
	listed := unnoticed(t)
	var mu sync.Mutex
	var problems []string
	var all sync.WaitGroup
	for _, s := range scenes() {
		mine := listed[s.name]
		delete(listed, s.name)
		all.Go(func() {
			found := s.compare(t, mine)
			mu.Lock()
			defer mu.Unlock()
			problems = append(problems, found...)
		})
	}
	all.Wait()
	slices.Sort(problems)
	assert.Empty(t, problems, "%s differs:\n%s", unnoticedFile, strings.Join(problems, "\n"))
	assert.Empty(t, listed, "%s names checks that do not exist", unnoticedFile)
}

// unnoticed reads unnoticedFile: by the name of the scene, the answers and lies.
func unnoticed(t *testing.T) map[string]unnoticedLies {
	t.Helper()
	text, err := os.ReadFile(unnoticedFile)
	require.NoError(t, err)
	listed := make(map[string]unnoticedLies)
	reason := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		entry, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "":
			reason = ""
		case !indented:
			reason = line
		default:
			require.NotEmpty(t, reason, "no reason for %s", entry)
			name, rest, ok := strings.Cut(entry, ": ")
			require.True(t, ok, entry)
			if listed[name] == nil {
				listed[name] = make(unnoticedLies)
			}
			require.False(t, listed[name][rest].listed, "%s is listed twice", entry)
			// Whether calls that race get some answer is a matter of chance.
			occurs := !strings.Contains(rest, ", racing: ") && !strings.HasPrefix(reason, slowOnly)
			listed[name][rest] = struct{ listed, occurs bool }{true, occurs}
		}
	}
	return listed
}

// scenes returns the checks that need no network, on the Fake, and some of them on correct Lockers
// of other kinds as well, from which they get other answers.
func scenes() (list []*scene) {
	kinds := []struct {
		name   string
		checks []string
		alter  func(f *mutants.Fake)
	}{
		{"with limits", []string{"expiry/any-ttl", "wait/any-key", "watch/any-key"}, limited},
		{"slow", []string{"context/cancel-during-call", "context/no-late-success"}, func(f *mutants.Fake) {
			mutants.Slowly(f, mutants.Fixed(10*time.Millisecond), mutants.Fixed(0))
		}},
		{"very slow", []string{"context/future-deadline"}, func(f *mutants.Fake) {
			mutants.Slowly(f, mutants.Fixed(350*time.Millisecond), mutants.Fixed(0))
		}},
		{"without a queue", []string{"wait/unsupported"}, func(f *mutants.Fake) {
			f.Waits(func(context.Context, string, string, time.Duration) (time.Time, error) {
				return time.Time{}, errors.ErrUnsupported
			})
		}},
	}
	room := make(chan struct{}, 4)
	for _, ck := range checks() {
		if ck.Needs&harness.NeedsNetwork != 0 {
			continue
		}
		list = append(list, &scene{ck.Name, ck, func(*mutants.Fake) {}, room})
		for _, k := range kinds {
			if slices.Contains(k.checks, ck.Name) {
				list = append(list, &scene{ck.Name + ", " + k.name, ck, k.alter, room})
			}
		}
	}
	return list
}

// limited makes f refuse long ttls, and long keys for Wait and Watch.
func limited(f *mutants.Fake) {
	acquire, extend, wait, watch := f.OnAcquire, f.OnExtend, f.OnWait, f.OnWatch
	const longest = 31 * 24 * time.Hour
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if ttl > longest && ctx.Err() == nil {
			return false, locker.ErrInvalidTTL
		}
		return acquire(ctx, key, token, ttl)
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if ttl > longest && ctx.Err() == nil {
			return false, locker.ErrInvalidTTL
		}
		return extend(ctx, key, token, ttl)
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if len(key) > 200 && ctx.Err() == nil {
			return time.Time{}, errors.ErrUnsupported
		}
		return wait(ctx, key, token, ttl)
	}
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if len(key) > 200 && ctx.Err() == nil {
			return nil, errors.ErrUnsupported
		}
		return watch(ctx, key)
	}
}
