package stampede

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/term"
)

// table puts the strategies side by side, each as soon as its rounds are over.
type table struct {
	out      io.Writer
	terminal bool // stderr shows the progress
}

const row = "%-15s   %9s   %7s   %10s   %10s   %8s\n"

func newTable(out io.Writer, s settings) table {
	on := "an embedded Redis"
	if s.backend != nil {
		on = s.backend.String()
	}
	fmt.Fprintf(out, "%d processes × %d goroutines miss one key at the same moment; a query takes %v; %d rounds on %s\n",
		s.processes, s.goroutines, s.load, s.rounds, on)
	return table{out, term.IsTerminal(int(os.Stderr.Fd()))}
}

func (t table) head() {
	fmt.Fprintln(t.out)
	fmt.Fprintf(t.out, row, "", "database", "", "median", "last", "server")
	fmt.Fprintf(t.out, row, "", "queries", "at", "caller", "caller", "requests")
	fmt.Fprintf(t.out, row, "strategy", "a round", "most", "served", "served", "a round")
}

// row shows queries and requests as a mean over the rounds, times as a median over them.
func (t table) row(r result) {
	t.clear()
	queries := values(r.rounds, func(r round) int64 { return r.queries })
	fmt.Fprintf(t.out, row, r.strategy.name, mean(queries), strconv.FormatInt(slices.Max(queries), 10),
		milliseconds(values(r.rounds, func(r round) time.Duration { return r.median })),
		milliseconds(values(r.rounds, func(r round) time.Duration { return r.last })),
		mean(values(r.rounds, func(r round) int64 { return r.requests })))
}

// progress is a line on a terminal, and nothing anywhere else.
func (t table) progress(strategy string, round, of int) {
	if t.terminal {
		fmt.Fprintf(os.Stderr, "\r%-15s   round %d of %d", strategy, round, of)
	}
}

// clear removes the line of the progress.
func (t table) clear() {
	if t.terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
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
