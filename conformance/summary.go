package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// summary is the result of a run.
type summary struct {
	list         []check // all of them, run or not
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
		s += "; begin with " + plainest(sum.list, sum.failed, sum.indirect)
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
func plainest(list []check, failed []string, indirect map[string]bool) string {
	first := []string{
		"exclusion/one-holder", "expiry/never-early", "release/only-the-owner", "extend/only-the-owner",
		"fault/connection-refused", "fault/release-paused",
	}
	for _, ck := range list {
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
