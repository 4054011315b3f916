package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type counterMutant struct {
	bugs counterBugs
	must []string
}

// counterMutants are Counters with one mistake each, and the checks that must find it.
var counterMutants = map[string]counterMutant{
	"EXISTS then INCR": {
		bugs: counterBugs{count: existsThenIncr},
		must: []string{"fault/paused", "window/thousand-turns", "count/first-concurrent"},
	},
	"INCR then EXPIRE":         {bugs: counterBugs{count: incrThenExpire}, must: []string{"fault/paused", "window/turns"}},
	"GET then SETEX":           {bugs: counterBugs{count: getThenSetEx}, must: []string{"count/concurrent", "count/first-concurrent"}},
	"INCR that renews":         {bugs: counterBugs{count: incrAndRenew}, must: []string{"window/turns"}},
	"windows from the first":   {bugs: counterBugs{count: ttlWindow}, must: []string{"window/left", "window/turns"}},
	"client clock":             {bugs: counterBugs{count: byClientClock}, must: []string{"clock/server"}},
	"TIME then INCR":           {bugs: counterBugs{count: timeThenIncr}, must: []string{"fault/paused"}},
	"no expiry":                {bugs: counterBugs{count: withoutExpiry}, must: []string{"expiry/always", "window/thousand-turns"}},
	"resets in steps":          {bugs: counterBugs{count: resetsAtTheTurn}, must: []string{"window/storm", "fault/paused"}},
	"no previous":              {bugs: changed(func(c *window.Counts, _ int64) { c.Previous = 0 }), must: []string{"window/turns"}},
	"the sum before":           {bugs: changed(func(c *window.Counts, n int64) { c.Current -= n }), must: []string{"count/adds"}},
	"half of the rest is left": {bugs: changed(halfway), must: []string{"window/left"}},
	"32 bits":                  {bugs: changed(int32s), must: []string{"count/large"}},
	"a look counts":            {bugs: askedFor(func(_ *string, n *int64, _ *time.Duration) { *n = max(*n, 1) }), must: []string{"count/looks"}},
	"adds one":                 {bugs: askedFor(func(_ *string, n *int64, _ *time.Duration) { *n = min(*n, 1) }), must: []string{"count/adds"}},
	"names folded":             {bugs: askedFor(func(key *string, _ *int64, _ *time.Duration) { *key = strings.ToLower(*key) }), must: []string{"names/any"}},
	"names cut":                {bugs: askedFor(func(key *string, _ *int64, _ *time.Duration) { *key = (*key)[:min(len(*key), 250)] }), must: []string{"names/any"}},
	"one length for all":       {bugs: askedFor(func(_ *string, _ *int64, per *time.Duration) { *per = min(*per, time.Hour) }), must: []string{"names/lengths"}},
	"repeats":                  {bugs: counterBugs{count: insists}, must: []string{"fault/replies-lost"}},
	"errors are counts":        {bugs: counterBugs{count: loses}, must: []string{"fault/refused", "fault/hangs", "context/ended", "fault/reply-lost"}},
	"contexts are ignored":     {bugs: counterBugs{count: ignoresContext}, must: []string{"context/ended", "fault/hangs"}},

	"denied calls count": {bugs: counterBugs{under: countsDenied}, must: []string{"under/limit", "under/all-or-none", "under/concurrent"}},
	"a look is allowed":  {bugs: lookIs(true), must: []string{"under/looks"}},
	"a look is denied":   {bugs: lookIs(false), must: []string{"under/looks"}},
	"one too many":       {bugs: under(func(r window.Rule, c window.Counts, n int64) bool { return r.Allows(c, n-1) }), must: []string{"under/limit", "under/all-or-none"}},
	"one too few":        {bugs: under(func(r window.Rule, c window.Counts, n int64) bool { return r.Allows(c, n+1) }), must: []string{"under/limit", "under/all-or-none"}},
	"looks, then counts": {bugs: under(window.Rule.Allows), must: []string{"under/concurrent"}},
	"no weight": {bugs: under(func(r window.Rule, c window.Counts, n int64) bool {
		c.Previous = 0
		return r.Allows(c, n)
	}), must: []string{"under/weighted"}},
	"a weight for fixed windows": {bugs: counterBugs{under: weighsFixed}, must: []string{"under/weighted"}},
	"forgets when it denies":     {bugs: counterBugs{under: forgetsDenied}, must: []string{"under/weighted"}},
}

func TestCounterMutants(t *testing.T) {
	t.Parallel()
	missed := make(map[string]bool)
	for _, ck := range counterChecks() {
		missed[ck.name] = true
	}
	for _, m := range counterMutants {
		for _, must := range m.must {
			delete(missed, must)
		}
	}
	assert.Empty(t, missed, "checks that no mutant fails")
	together(t, counterMutants, func(t *testing.T, m counterMutant) {
		c := counterFakes(t, testserver.Redis(t).Addr, m.bugs)
		for _, ck := range counterChecks() {
			if slices.Contains(m.must, ck.name) {
				r := harness.Judge(t, ck.task(c))
				for try := 1; try < 4 && !r.Failed(); try++ { // a race may go well
					r = harness.Judge(t, ck.task(c))
				}
				assert.True(t, r.Failed(), "%s: %s", ck.name, r.Why())
			}
		}
	})
}

func TestCounterFakeIsRight(t *testing.T) {
	t.Parallel()
	RunCounter(t, counterFakes(t, testserver.Redis(t).Addr, counterBugs{}))
}

func TestCounterBadConfig(t *testing.T) {
	t.Parallel()
	newCounter := func(testing.TB, string) window.Counter { return nil }
	for want, c := range map[string]CounterConfig{
		"CounterConfig.New is nil":                            {},
		`CounterConfig.Skip names "count/nothing"`:            {New: newCounter, Skip: map[string]string{"count/nothing": "x"}},
		`CounterConfig.Skip gives no reason for "count/adds"`: {New: newCounter, Skip: map[string]string{"count/adds": ""}},
	} {
		assert.ErrorContains(t, c.complete(), want)
	}
	c := CounterConfig{New: newCounter}
	require.NoError(t, c.complete())
	assert.Contains(t, harness.Judge(t, counterChecks()[0].task(c)).Printed(), "CounterConfig.New returned nil")
}
