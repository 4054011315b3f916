package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// printTable puts the strategies side by side: queries and requests as a mean over the rounds, times as a
// median over them.
func printTable(w io.Writer, s settings, results []result) {
	on := "an embedded Redis"
	if s.backend != nil {
		on = s.backend.String()
	}
	fmt.Fprintf(w, "%d processes × %d goroutines miss one key at the same moment; a query takes %v; %d rounds on %s\n\n",
		s.processes, s.goroutines, s.load, s.rounds, on)
	const row = "%-15s   %9s   %7s   %10s   %10s   %8s\n"
	fmt.Fprintf(w, row, "", "database", "", "median", "last", "server")
	fmt.Fprintf(w, row, "", "queries", "at", "caller", "caller", "requests")
	fmt.Fprintf(w, row, "strategy", "a round", "most", "served", "served", "a round")
	for _, r := range results {
		queries := values(r.rounds, func(r round) int64 { return r.queries })
		fmt.Fprintf(w, row, r.strategy, mean(queries), strconv.FormatInt(slices.Max(queries), 10),
			milliseconds(values(r.rounds, func(r round) time.Duration { return r.median })),
			milliseconds(values(r.rounds, func(r round) time.Duration { return r.last })),
			mean(values(r.rounds, func(r round) int64 { return r.requests })))
	}
}

func values[V any](rounds []round, of func(round) V) []V {
	list := make([]V, len(rounds))
	for i, r := range rounds {
		list[i] = of(r)
	}
	return list
}

// mean has at most one digit after the point, and none when it is exact: 1 is once every time,
// 1.0 is not.
func mean(list []int64) string {
	var sum int64
	for _, v := range list {
		sum += v
	}
	if n := int64(len(list)); sum%n == 0 {
		return strconv.FormatInt(sum/n, 10)
	}
	return strconv.FormatFloat(float64(sum)/float64(len(list)), 'f', 1, 64)
}

func milliseconds(list []time.Duration) string {
	slices.Sort(list)
	return fmt.Sprintf("%.1f ms", list[len(list)/2].Seconds()*1000)
}

// progress is a bar on a terminal, and nothing anywhere else.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(s settings) progress {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return progress{}
	}
	return progress{progressbar.NewOptions(len(strategies)*(s.rounds+1),
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
	)}
}

func (p progress) describe(strategy string) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%-15s", strategy))
	}
}

func (p progress) add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n)
	}
}

// close removes the bar, even if it is not full.
func (p progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
