// Package stampede is the program that examples/stampede describes, but for the clients of servers
// other than Redis.
package stampede

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/golockers/locker/internal/fleet"
)

// role is the processes' role in the fleet.
const role = "stampede"

// Main runs the program and returns its exit status. The backends, by scheme, are those besides
// Redis. If the flags ask for another one, Main runs the program that has it.
func Main(backends map[string]Backend) int {
	fleet.Main(map[string]fleet.Role{role: process(backends)})
	return parentMain(backends, os.Args[1:], os.Stdout, os.Stderr)
}

// settings are the flags.
type settings struct {
	backend    *Address // nil: embedded
	processes  int
	goroutines int
	rounds     int
	load       time.Duration
	timeout    time.Duration
	http       string // the address of the page, "" if there is none
}

// pageLoad is how long a query takes on the page unless -load says otherwise: long enough to watch.
const pageLoad = time.Second

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("stampede", flag.ContinueOnError)
	flags.SetOutput(stderr)
	backend := flags.String("backend", "", "server for the cache and the locks: "+forms+" (default an embedded Redis)")
	flags.IntVar(&s.processes, "processes", 4, "processes of the fleet")
	flags.IntVar(&s.goroutines, "goroutines", 50, "callers in each process")
	flags.IntVar(&s.rounds, "rounds", 10, "how often the key expires under each strategy")
	flags.DurationVar(&s.load, "load", 20*time.Millisecond, "how long a database query takes")
	flags.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long a caller waits for the value")
	flags.StringVar(&s.http, "http", "", "show the rounds on a page at this `address`, for instance :8080; a query takes "+
		pageLoad.String()+" then unless -load is set")
	if err := flags.Parse(args); err != nil {
		return s, err // printed already
	}
	isSet := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { isSet[f.Name] = true })
	err := func() error {
		if flags.NArg() > 0 {
			return fmt.Errorf("unexpected argument %q", flags.Arg(0))
		}
		if s.processes < 1 || s.goroutines < 1 || s.rounds < 1 {
			return errors.New("-processes, -goroutines and -rounds are at least 1")
		}
		if s.load < 0 || s.timeout <= 0 {
			return errors.New("-load is not negative, and -timeout is positive")
		}
		if isSet["http"] {
			if isSet["rounds"] {
				return errors.New("-rounds and -http exclude each other: the page has rounds as long as it is open")
			}
			if !isSet["load"] {
				s.load = pageLoad
			}
			if err := checkHTTP(s.http); err != nil {
				return err
			}
		}
		if *backend == "" {
			return nil
		}
		var err error
		s.backend, err = parseAddress(*backend)
		return err
	}()
	if err != nil {
		fmt.Fprintln(stderr, "stampede:", err)
	}
	return s, err
}

func checkHTTP(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("-http %q is not host:port, for instance :8080", address)
	}
	return nil
}

func parentMain(backends map[string]Backend, args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	backend, ok := of(backends, s.backend)
	if !ok {
		code, err := runOther(ctx, args, stdout, stderr)
		if err != nil {
			return report(ctx, err, stderr)
		}
		return code
	}
	if s.http != "" {
		if err := servePage(ctx, backend, s, stdout); err != nil {
			fmt.Fprintln(stderr, "stampede:", err)
			return status(err)
		}
		return 0
	}
	results, err := run(ctx, backend, s, newTable(stdout, s))
	if err == nil {
		err = verdict(results)
	}
	return report(ctx, err, stderr)
}

// report prints why the program ends before its time, if it does, and returns its exit status.
func report(ctx context.Context, err error, stderr io.Writer) int {
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "stampede: interrupted")
		return 130
	case err != nil:
		fmt.Fprintln(stderr, "stampede:", err)
		return status(err)
	}
	return 0
}

func status(err error) int {
	if errors.Is(err, errNoServer) || errors.Is(err, errNoPage) {
		return 2
	}
	return 1
}
