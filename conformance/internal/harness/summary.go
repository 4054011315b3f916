package harness

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// summary is the outcome of a run.
type summary struct {
	list         []Check // all checks, in order
	passed       int
	failed       []string        // by name
	indirect     map[string]bool // the failed checks without a wrong answer
	inconclusive []string        // with the reason
	skipped      map[string]int  // by reason
}

func (sum *summary) add(ck Check, r *Recorder) {
	switch {
	case r.Failed():
		sum.failed = append(sum.failed, ck.Name)
		sum.indirect[ck.Name] = r.isIndirect()
	case r.Skipped():
		sum.skipped[r.Why()]++
	case r.Inconclusive():
		sum.inconclusive = append(sum.inconclusive, ck.Name+" ("+r.Why()+")")
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

// plainest returns the failed check to begin with, since one mistake fails several. A wrong answer
// proves more than a late one or an error, and a check without faults more than one with them. Then
// the direct checks come first, in the order of list.
func plainest(list []Check, failed []string, indirect map[string]bool) string {
	cost := func(ck Check) (c int) {
		if indirect[ck.Name] {
			c += 4
		}
		if ck.Needs&NeedsNetwork != 0 {
			c += 2
		}
		if !ck.Direct {
			c++
		}
		return c
	}
	list = slices.DeleteFunc(slices.Clone(list), func(ck Check) bool { return !slices.Contains(failed, ck.Name) })
	return slices.MinFunc(list, func(a, b Check) int { return cmp.Compare(cost(a), cost(b)) }).Name
}
