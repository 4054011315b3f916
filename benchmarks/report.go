package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// writeHeader describes what was run, when, on which machine and with which versions.
func writeHeader(ctx context.Context, w io.Writer, b *bench) error {
	var h strings.Builder
	fmt.Fprintf(&h, "date: %s\n", time.Now().UTC().Format(time.RFC3339))
	fmt.Fprintf(&h, "command: go run -C benchmarks . %s\n", strings.Join(os.Args[1:], " "))
	fmt.Fprintf(&h, "goos: %s\ngoarch: %s\ngo: %s\n", runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(&h, "cpu: %s, %d processors\n", processor(), runtime.NumCPU())
	fmt.Fprintf(&h, "redis: %s\nmemcached: %s\n", b.redis.version, b.memcached.version)
	fmt.Fprintf(&h, "load average: %s (of 1, 5 and 15 minutes, before)\n", loadAverage())
	fmt.Fprintf(&h, "rounds: %d\nscale: %g\n", b.rounds, b.scale)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			for _, of := range []string{"redis", "redigo", "gomemcache", "redsync", "rueidis", "rockscache",
				"go-redis/cache", "singleflight", "x/sync", "jackc/pgx", "etcd/client", "sql-driver/mysql", "modernc.org/sqlite"} {
				if strings.Contains(m.Path, of) {
					fmt.Fprintf(&h, "module: %s %s\n", m.Path, m.Version)
					break
				}
			}
		}
	}
	_, err := io.WriteString(w, h.String()+"\n")
	return errors.Join(err, ctx.Err())
}

// loadAverage returns how busy the machine was.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	_, name, _ := strings.Cut(field(string(text), "model name"), ": ")
	return name
}

// readResults returns the raw results in a directory.
func readResults(dir string) (*results, error) {
	var samples []sample
	var headers []string
	for _, section := range sections {
		text, err := os.ReadFile(rawFile(dir, section.name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		header, some := parseRaw(text)
		headers = append(headers, fmt.Sprintf("%s:\n\n```\n%s\n```\n", section.name, strings.Join(header, "\n")))
		samples = append(samples, some...)
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("there are no results in %s", dir)
	}
	r := collect(samples)
	r.headers = headers
	return r, nil
}

// report writes the tables and plots of the raw results, and prints the goals.
func report(dir string, stdout io.Writer) error {
	r, err := readResults(dir)
	if err != nil {
		return err
	}
	goals := r.goals()
	var md bytes.Buffer
	fmt.Fprintf(&md, "# Results\n\nWritten by the program in `benchmarks/`; every run is in the files raw-*.txt beside "+
		"this one, and\n[docs/performance.md](../../docs/performance.md) says what this means.\n"+
		"Each figure is the median of the rounds; of overlaps it is their sum.\n")
	fmt.Fprintf(&md, "\n## Goals\n\n%s", goals)
	for _, section := range r.sections() {
		r.writeSection(&md, section)
	}
	fmt.Fprintf(&md, "\n## How it was measured\n\n%s", strings.Join(r.headers, "\n"))
	if err := os.WriteFile(filepath.Join(dir, "results.md"), md.Bytes(), 0o644); err != nil {
		return err
	}
	if err := r.plot(dir); err != nil {
		return err
	}
	_, err = io.WriteString(stdout, goals)
	return err
}

// results are the samples, by section, scenario and contender, in the order in which they came.
type results struct {
	rows    []*row
	headers []string // how each section was measured
}

type row struct {
	section, scenario, who string
	rounds                 map[string][]float64 // by unit
	units                  []string
	errs                   []string
}

func collect(samples []sample) *results {
	r := &results{}
	for _, s := range samples {
		w := r.row(s.section, s.scenario, s.who)
		if w == nil {
			w = &row{section: s.section, scenario: s.scenario, who: s.who, rounds: map[string][]float64{}}
			r.rows = append(r.rows, w)
		}
		if s.err != "" {
			w.errs = append(w.errs, s.err)
		}
		for _, m := range s.metrics {
			if _, ok := w.rounds[m.unit]; !ok {
				w.units = append(w.units, m.unit)
			}
			w.rounds[m.unit] = append(w.rounds[m.unit], m.value)
		}
	}
	return r
}

// row is nil when there is none.
func (r *results) row(section, scenario, who string) *row {
	for _, w := range r.rows {
		if w.section == section && w.scenario == scenario && w.who == who {
			return w
		}
	}
	return nil
}

func (r *results) sections() (names []string) {
	for _, w := range r.rows {
		if !slices.Contains(names, w.section) {
			names = append(names, w.section)
		}
	}
	return names
}

// scenarios are those of a section.
func (r *results) scenarios(section string) (names []string) {
	for _, w := range r.rows {
		if w.section == section && !slices.Contains(names, w.scenario) {
			names = append(names, w.scenario)
		}
	}
	return names
}

// of are the rows of a scenario.
func (r *results) of(section, scenario string) (rows []*row) {
	for _, w := range r.rows {
		if w.section == section && w.scenario == scenario {
			rows = append(rows, w)
		}
	}
	return rows
}

// median of the rounds, or NaN. Of overlaps it is the sum, because one is too many.
func (w *row) median(unit string) float64 {
	if w == nil {
		return math.NaN()
	}
	if unit == "overlaps" && len(w.rounds[unit]) > 0 {
		sum := 0.0
		for _, v := range w.rounds[unit] {
			sum += v
		}
		return sum
	}
	return median(w.rounds[unit])
}

func (w *row) most(unit string) float64 {
	if w == nil || len(w.rounds[unit]) == 0 {
		return math.NaN()
	}
	return slices.Max(w.rounds[unit])
}

func (w *row) least(unit string) float64 {
	if w == nil || len(w.rounds[unit]) == 0 {
		return math.NaN()
	}
	return slices.Min(w.rounds[unit])
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// ratio is the median over the rounds of one row's figure to another's.
func ratio(a, b *row, unit string) float64 {
	if a == nil || b == nil {
		return math.NaN()
	}
	var list []float64
	for i := range min(len(a.rounds[unit]), len(b.rounds[unit])) {
		list = append(list, a.rounds[unit][i]/b.rounds[unit][i])
	}
	return median(list)
}

func (r *results) writeSection(md *bytes.Buffer, section string) {
	fmt.Fprintf(md, "\n## %s%s\n", strings.ToUpper(section[:1]), section[1:])
	for _, scenario := range r.scenarios(section) {
		rows := r.of(section, scenario)
		var units []string
		for _, w := range rows {
			for _, unit := range w.units {
				if !slices.Contains(units, unit) {
					units = append(units, unit)
				}
			}
		}
		fmt.Fprintf(md, "\n### %s\n\n| | %s | rounds |\n|---|%s\n", scenario, strings.Join(units, " | "),
			strings.Repeat("---:|", len(units)+1))
		for _, w := range rows {
			fmt.Fprintf(md, "| %s |", w.who)
			rounds := 0
			for _, unit := range units {
				rounds = max(rounds, len(w.rounds[unit]))
				fmt.Fprintf(md, " %s |", number(w.median(unit)))
			}
			fmt.Fprintf(md, " %d", rounds)
			if len(w.errs) > 0 {
				fmt.Fprintf(md, ", failed %d times: %s", len(w.errs), strings.ReplaceAll(w.errs[0], "|", "/"))
			}
			fmt.Fprint(md, " |\n")
		}
	}
}

// number has three significant digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case v == math.Trunc(v) && math.Abs(v) < 1000:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case math.Abs(v) >= 100_000:
		return strconv.FormatFloat(v/1000, 'f', 0, 64) + " k"
	case math.Abs(v) >= 10_000:
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + " k"
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case math.Abs(v) >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
