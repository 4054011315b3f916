package main

import (
	"fmt"
	"math"
	"strings"
)

// crowdGoals are how many times as fast as the best peer many goroutines should be.
var crowdGoals = []struct {
	scenario string
	goal     float64
}{{"uncontended-32", 1.5}, {"uncontended-256", 2}, {"uncontended-1000", 2}}

// lingerGoals are how many times as fast as the best peer lingering locks should be.
var lingerGoals = []struct {
	scenario string
	goal     float64
}{{"same-key", 100}, {"random-1000-keys", 15}}

// goals returns a Markdown table of this library's goals, most of them relative to the best of its
// peers, and of what was measured. A ratio is the median of the rounds' ratios.
func (r *results) goals() string {
	var t goalTable
	t.WriteString("| goal | measured | |\n|---|---|---|\n")
	for _, who := range []string{"redisv9", "redisv9+batch"} {
		us, byHand := r.row("locks", "uncontended-1", who), r.row("locks", "uncontended-1", "by-hand-1ms")
		t.ratio("uncontended-1", "cycles/s", us, byHand, 0.97, true)
	}
	for _, c := range crowdGoals {
		us, plain := r.row("locks", c.scenario, "redisv9+batch"), r.row("locks", c.scenario, "redisv9")
		t.ratio(c.scenario, "cycles/s", us, r.bestPeer("locks", c.scenario, "cycles/s", false), c.goal, true)
		t.ratio(c.scenario, "cpu-us/cycle", us, plain, 0.5, false)
		t.ratio(c.scenario, "server-cpu-us/cycle", us, plain, 0.5, false)
	}
	for _, scenario := range []string{"one-key-1x32", "one-key-4x8"} {
		us, best := r.row("locks", scenario, "redisv9+cohort"), r.bestPeer("locks", scenario, "cycles/s", true)
		t.ratio(scenario, "cycles/s", us, best, 60, true)
		t.bound(scenario, "least-share", us, "median", us.median("least-share"), 0.9, true)
	}
	t.ratio("uncontended-32", "cycles/s", r.row("locks", "uncontended-32", "rueidis"),
		r.row("locks", "uncontended-32", "rueidislock"), 1.2, true)
	t.ratio("one-key-1x32", "cycles/s", r.row("locks", "one-key-1x32", "rueidis+cohort"),
		r.row("locks", "one-key-1x32", "rueidislock"), 15, true)
	// A turn is an offer and its confirmation, and a place for the next one: with several goroutines in
	// each process it goes along with another request.
	us := r.row("locks", "one-key-4x8", "redisv9")
	t.bound("one-key-4x8", "requests/cycle", us, "median", us.median("requests/cycle"), 2.05, false)
	us = r.row("locks", "hand-off", "redisv9")
	t.ratio("hand-off", "cycles/s", us, r.bestPeer("locks", "hand-off", "cycles/s", false), 1, true)
	t.bound("hand-off", "lock-p99-ms", us, "median", us.median("lock-p99-ms"), 13, false)
	t.bound("hand-off", "requests/cycle", us, "median", us.median("requests/cycle"), 3, false)
	t.bound("hand-off", "least-share", us, "median", us.median("least-share"), 0.98, true)

	for _, scenario := range []string{"kept-1s", "kept-15s", "kept-1m"} {
		us := r.row("scale", scenario, "redisv9")
		t.bound(scenario, "requests/s", us, "most", us.most("requests/s"), 250, false)
	}
	for _, g := range lingerGoals {
		us, best := r.row("linger", g.scenario, "redisv9+linger"), r.bestPeer("linger", g.scenario, "cycles/s", false)
		t.ratio(g.scenario, "cycles/s", us, best, g.goal, true)
	}
	us = r.row("linger", "same-key", "redisv9+linger")
	t.bound("same-key", "requests/cycle", us, "median", us.median("requests/cycle"), 0.001, false)
	us = r.row("linger", "first-access", "redisv9+linger")
	t.bound("first-access", "lock-p50-ms", us, "median", us.median("lock-p50-ms"), 1, false)
	t.bound("first-access", "lock-p99-ms", us, "median", us.median("lock-p99-ms"), 3, false)

	for _, scenario := range []string{"uncontended-1", "uncontended-32"} {
		t.ratio(scenario, "cycles/s", r.row("postgres", scenario, "postgres"), r.row("postgres", scenario, "row-lease-1ms"), 0.95, true)
	}
	us = r.row("postgres", "hand-off", "postgres")
	t.ratio("hand-off", "cycles/s", us, r.row("postgres", "hand-off", "row-lease-1ms"), 1.05, true)
	t.ratio("hand-off", "cycles/s", us, r.row("postgres", "hand-off", "advisory-pinned"), 0.85, true)
	t.bound("hand-off", "lock-p99-ms", us, "median", us.median("lock-p99-ms"), 25, false)
	t.ratio("refused-8", "refusals/s", r.row("postgres", "refused-8", "postgres"), r.row("postgres", "refused-8", "row-lease"), 10, true)
	// A lease of its own for each lock.
	us, peer := r.row("etcd", "uncontended-1", "etcd"), r.row("etcd", "uncontended-1", "concurrency")
	t.ratio("etcd, uncontended-1", "cycles/s", us, peer, 0.9, true)
	us, peer = r.row("etcd", "hand-off", "etcd"), r.row("etcd", "hand-off", "concurrency")
	t.ratio("etcd, hand-off", "cycles/s", us, peer, 1, true)
	t.ratio("etcd, hand-off", "requests/cycle", us, peer, 1, false)

	one, leaving := r.row("flights", "One", "Group"), r.row("flights", "OneLeaving", "Group")
	t.ratio("One", "ns/op", one, r.row("flights", "One", "xsync"), 1.1, false)
	t.bound("One", "allocs/op", one, "most", one.most("allocs/op"), 1, false)
	t.ratio("OneLeaving", "ns/op", leaving, r.row("flights", "OneLeaving", "xsync"), 1, false)
	t.bound("OneLeaving", "allocs/op", leaving, "most", leaving.most("allocs/op"), 5, false)
	for _, scenario := range []string{"Thousand", "ThousandLeaving"} {
		t.ratio(scenario, "ns/op", r.row("flights", scenario, "Group"), r.row("flights", scenario, "xsync"), 1.2, false)
	}

	for _, scenario := range []string{"Thousand", "ThousandLeaving"} {
		t.ratio(scenario, "ns/op", r.row("flights", scenario, "Fleet"), r.row("flights", scenario, "xsync"), 1.3, false)
	}
	us = r.row("many", "missing-200", "LoadMany")
	t.bound("missing-200", "requests", us, "most", us.most("requests"), 12, false)
	t.bound("missing-200", "queries", us, "most", us.most("queries"), 1, false)

	us = r.row("stampede", "8x50-20ms", "Fleet")
	t.bound("8x50-20ms", "loads", us, "most", us.most("loads"), 1, false)
	for _, scenario := range []string{"8x50-20ms", "8x50-230ms"} {
		us := r.row("stampede", scenario, "Loader")
		t.bound(scenario, "loads", us, "most", us.most("loads"), 1, false)
		t.bound(scenario, "requests", us, "median", us.median("requests"), 44, false)
		t.bound(scenario, "last-after-load-ms", us, "median", us.median("last-after-load-ms"), 1.5, false)
		t.ratio(scenario, "last-after-load-ms", us, r.row("stampede", scenario, "setnx-pubsub"), 1.05, false)
	}
	us = r.row("stampede", "8x10-50ms-fails", "Loader")
	t.bound("8x10-50ms-fails", "loads", us, "most", us.most("loads"), 2, false)
	us = r.row("stampede", "slow-source", "Loader")
	t.bound("slow-source", "loads", us, "most", us.most("loads"), 1, false)
	return t.String()
}

// bestPeer returns the peer with the best median, including peers that failed in some rounds.
// With everyone set, it leaves out those that did not serve every goroutine in every round.
func (r *results) bestPeer(section, scenario, unit string, everyone bool) *row {
	var best *row
	for _, w := range r.of(section, scenario) {
		c, err := findContender(w.who)
		if err != nil || c.ours || len(w.rounds[unit]) == 0 || everyone && !(w.least("least-share") > 0) {
			continue
		}
		if best == nil || w.median(unit) > best.median(unit) {
			best = w
		}
	}
	return best
}

type goalTable struct{ strings.Builder }

func (t *goalTable) ratio(scenario, unit string, us, peer *row, goal float64, atLeast bool) {
	if us == nil || peer == nil {
		return
	}
	t.line(fmt.Sprintf("%s: %s of %s %s %s × %s's", scenario, unit, us.who, sign(atLeast), number(goal), peer.who),
		fmt.Sprintf("%s × (%s, %s)", number(ratio(us, peer, unit)), number(us.median(unit)), number(peer.median(unit))),
		ratio(us, peer, unit), goal, atLeast)
}

func (t *goalTable) bound(scenario, unit string, us *row, of string, value, goal float64, atLeast bool) {
	if us == nil {
		return
	}
	t.line(fmt.Sprintf("%s: %s %s of %s %s %s", scenario, of, unit, us.who, sign(atLeast), number(goal)),
		fmt.Sprintf("%s in %d rounds", number(value), len(us.rounds[unit])), value, goal, atLeast)
}

func (t *goalTable) line(what, measured string, value, goal float64, atLeast bool) {
	verdict := "missed"
	if !math.IsNaN(value) && (atLeast && value >= goal || !atLeast && value <= goal) {
		verdict = "met"
	}
	fmt.Fprintf(t, "| %s | %s | %s |\n", what, measured, verdict)
}

func sign(atLeast bool) string {
	if atLeast {
		return "≥"
	}
	return "≤"
}
