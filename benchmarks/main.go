// Benchmarks measures this library and its peers side by side, on servers that it starts itself:
//
//	go run -C benchmarks . -all                  # everything, about twenty minutes
//	go run -C benchmarks . -only locks,stampede  # some sections; results go where -out says
//	go run -C benchmarks . -report               # tables and plots again, from the raw results
//	go run -C benchmarks . -fleets FILE          # what larger fleets need, simulated from the raw results
//
// It writes results/raw-*.txt, which benchstat reads, results/results.md, and plots; docs/performance.md
// explains them. The contenders of a section take turns, for several rounds. Each run uses fresh
// operating-system processes, and every figure in a table is the median of the rounds.
//
// The exit status is 1 if this library failed or let a lock have two holders, and 2 for bad flags, or a server
// that cannot be started. If a peer fails, its row shows that, and the status is 0.
//
// Where to look: lockers.go has the locks that are compared, and cycles.go what is done with them; strategies.go
// and stampede.go are the same for a key that is missing from a cache, many.go for many keys; linger.go has locks that are taken again and
// again; growth.go and scale.go measure how cost grows; simulate.go sizes fleets; limits.go compares limiters;
// singleflight/ has the benchmarks of one process; fleet.go and child.go run the processes; report.go writes
// the tables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/golockers/locker/internal/fleet"
)

func main() {
	fleet.Main(roles())
	os.Exit(parentMain(os.Args[1:], os.Stdout, os.Stderr))
}

// roles are those of the processes that it starts.
func roles() map[string]fleet.Role { return map[string]fleet.Role{workerRole: work} }

// sections are what -only chooses from, in the order in which they run.
var sections = []struct {
	name string
	run  func(context.Context, *bench) error
}{
	{"check", runChecks},
	{"flights", runFlights},
	{"locks", runLocks},
	{"linger", runLinger},
	{"memcached", runMemcached},
	{"etcd", runEtcd},
	{"memory", runMemory},
	{"postgres", runPostgres},
	{"sql", runSQL},
	{"stampede", runStampede},
	{"many", runMany},
	{"growth", runGrowth},
	{"leases", runLeases},
	{"scale", runScale},
	{"window", runWindow},
}

type settings struct {
	only    []string
	out     string
	rounds  int
	scale   float64 // of every duration
	report  bool
	fleets  string // the page to write; empty for none
	profile string
	match   *regexp.Regexp // of the names of runs
}

// errSetUp is an error before anything was measured.
var errSetUp = errors.New("set up")

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var names []string
	for _, section := range sections {
		names = append(names, section.name)
	}
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	all := flags.Bool("all", false, "run every section")
	only := flags.String("only", "", "run these sections, separated by commas: "+strings.Join(names, ", "))
	flags.StringVar(&s.out, "out", "results", "directory of the results")
	flags.IntVar(&s.rounds, "rounds", 8, "how often each contender has its turn")
	flags.Float64Var(&s.scale, "scale", 1, "factor for the length of every run")
	flags.BoolVar(&s.report, "report", false, "measure nothing, write tables and plots from the raw results")
	flags.StringVar(&s.fleets, "fleets", "", "measure nothing, simulate large fleets from the raw results, and write this page")
	flags.StringVar(&s.profile, "profile", "", "directory for a profile of the processor of each run")
	match := flags.String("match", "", "only runs whose name (Benchmark…/scenario/who=contender) has a match for this")
	if err := flags.Parse(args); err != nil {
		return s, err // printed already
	}
	err := func() (err error) {
		if s.profile != "" {
			if s.profile, err = filepath.Abs(s.profile); err != nil {
				return err
			}
			if info, err := os.Stat(s.profile); err != nil || !info.IsDir() {
				return fmt.Errorf("-profile: there is no directory %s", s.profile)
			}
		}
		if s.match, err = regexp.Compile(*match); err != nil {
			return fmt.Errorf("-match: %w", err)
		}
		switch {
		case flags.NArg() > 0:
			return fmt.Errorf("unexpected argument %q", flags.Arg(0))
		case s.rounds < 1 || s.rounds > 1000:
			return errors.New("-rounds is from 1 to 1000")
		case !(s.scale >= 0.01 && s.scale <= 100):
			return errors.New("-scale is from 0.01 to 100")
		case *all:
			s.only = names
		case *only != "":
			s.only = strings.Split(*only, ",")
		case !s.report && s.fleets == "":
			return errors.New("nothing to do: say -all, -only, -report or -fleets")
		}
		for _, name := range s.only {
			if !slices.Contains(names, name) {
				return fmt.Errorf("-only: no section %q, there are %s", name, strings.Join(names, ", "))
			}
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(stderr, "benchmarks:", err)
	}
	return s, err
}

func parentMain(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if s.fleets != "" {
		if err := simulateFleets(s.out, s.fleets); err != nil {
			fmt.Fprintln(stderr, "benchmarks:", err)
			return 1
		}
		return 0
	}
	if !s.report {
		err = measure(ctx, s, stderr)
	}
	if err == nil || errors.Is(err, errOurs) {
		err = errors.Join(err, report(s.out, stdout))
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "benchmarks: interrupted")
		return 130
	case errors.Is(err, errSetUp):
		fmt.Fprintln(stderr, "benchmarks:", err)
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "benchmarks:", err)
		return 1
	}
	return 0
}
