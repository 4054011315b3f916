package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// errOurs means that this library failed, or let a lock have two holders.
var errOurs = errors.New("this library failed")

// bench is what the sections share.
type bench struct {
	settings
	host      *host
	redis     *redisServer
	memcached *memcachedServer
	postgres  string  // a URL, in its sections
	mariadb   string  // a DSN, in its section
	sqlite    string  // a DSN, in its section
	etcd      string  // the address, in its section
	shared    *shared // the memory in which the processes of a fleet see each other
	raw       io.Writer
	progress  io.Writer
	errs      []error        // of this library
	hung      map[string]int // how often a run did not end in its time, by name
}

// measure runs the sections and writes what they measure to the raw results, line by line.
func measure(ctx context.Context, s settings, stderr io.Writer) (err error) {
	b := &bench{settings: s, host: new(host), progress: stderr, hung: map[string]int{}}
	defer b.host.close()
	if b.redis, err = openRedis(ctx, b.host); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	if b.memcached, err = openMemcached(ctx, b.host); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	if b.shared, err = newShared(); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	defer b.shared.remove()
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	for _, section := range sections {
		if !slices.Contains(s.only, section.name) {
			continue
		}
		start := time.Now()
		if err := b.runSection(ctx, section.name, section.run); err != nil {
			return fmt.Errorf("%s: %w", section.name, err)
		}
		fmt.Fprintf(b.progress, "%s: %v\n", section.name, time.Since(start).Round(100*time.Millisecond))
	}
	if len(b.errs) > 0 {
		return fmt.Errorf("%w: %w", errOurs, errors.Join(b.errs...))
	}
	return nil
}

// runSection replaces the raw results of one section. Those of other sections stay.
func (b *bench) runSection(ctx context.Context, name string, run func(context.Context, *bench) error) (err error) {
	file, err := os.Create(rawFile(b.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	b.raw = file
	if err := writeHeader(ctx, file, b); err != nil {
		return err
	}
	if err := run(ctx, b); err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "\nload average: %s (after)\n", loadAverage())
	return err
}

func rawFile(dir, section string) string { return filepath.Join(dir, "raw-"+section+".txt") }

// scaled is how long a run of a nominal length takes.
func (b *bench) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * b.scale)
}

// record adds a measurement to the raw results, in the format of Go's benchmarks.
func (b *bench) record(s sample) error {
	if s.err != "" {
		fmt.Fprintf(b.progress, "%s: %s\n", s.name(), s.err)
	}
	_, err := io.WriteString(b.raw, s.line())
	return err
}

// try runs a contender and records what it measured, or its error, unless it is not to run.
func (b *bench) try(ctx context.Context, s sample, ours bool, run func() ([]metric, error)) (err error) {
	if !b.match.MatchString(s.name()) {
		return nil
	}
	s.metrics, err = run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.err = err.Error()
		if ours {
			b.ourFault("%s: %w", s.name(), err)
		}
	}
	return b.record(s)
}

// ourFault records a failure of this library, which makes the program fail.
func (b *bench) ourFault(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

// newKey returns a key that no other run uses.
func newKey(what string) string { return "bench/" + what + "/" + rand.Text() }

// sample is one run of one contender.
type sample struct {
	section, scenario, who string
	metrics                []metric
	err                    string
}

type metric struct {
	value float64
	unit  string
}

func (s sample) name() string {
	return fmt.Sprintf("Benchmark%s%s/%s/who=%s", strings.ToUpper(s.section[:1]), s.section[1:], s.scenario, s.who)
}

func (s sample) line() string {
	if s.err != "" {
		return fmt.Sprintf("failed: %s: %s\n", s.name(), strings.Join(strings.Fields(s.err), " "))
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%s 1", s.name())
	for _, m := range s.metrics {
		fmt.Fprintf(&line, " %.6g %s", m.value, m.unit)
	}
	line.WriteByte('\n')
	return line.String()
}
