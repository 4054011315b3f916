package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// runFlights runs the benchmarks in singleflight/ round after round; within each the contenders take turns.
func runFlights(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "locker-benchmark-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := dir + "/singleflight.test"
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, "./singleflight")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for range b.rounds {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		out, err := exec.CommandContext(ctx, program, "-test.run=^$", "-test.bench=.", "-test.benchmem",
			"-test.benchtime="+b.scaled(100*time.Millisecond).String()).CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for line := range bytes.Lines(out) {
			s, ok := parseLine(string(line))
			if !ok {
				continue
			}
			s.section = "flights"
			if err := b.record(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseLine reads a line as Go's benchmarks write it, with a name of the form
// Benchmark[Section/]Scenario/who=contender[-processors].
func parseLine(line string) (s sample, ok bool) {
	if rest, failed := strings.CutPrefix(line, "failed: "); failed {
		name, message, found := strings.Cut(rest, ": ")
		s.err = strings.TrimSpace(message)
		return s, found && s.parseName(name)
	}
	fields := strings.Fields(line)
	if len(fields) < 2 || len(fields)%2 != 0 || !s.parseName(fields[0]) {
		return s, false
	}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return s, false
		}
		s.metrics = append(s.metrics, metric{v, fields[i+1]})
	}
	return s, true
}

func (s *sample) parseName(name string) bool {
	name, isBenchmark := strings.CutPrefix(name, "Benchmark")
	elements := strings.Split(name, "/")
	who, hasWho := strings.CutPrefix(elements[len(elements)-1], "who=")
	if !isBenchmark || !hasWho {
		return false
	}
	switch len(elements) {
	case 2: // from go test, which adds the number of processors
		s.scenario = elements[0]
		if i := strings.LastIndexByte(who, '-'); i > 0 {
			who = who[:i]
		}
	case 3:
		s.section, s.scenario = strings.ToLower(elements[0]), elements[1]
	default:
		return false
	}
	s.who = who
	return true
}

// parseRaw reads the raw results.
func parseRaw(text []byte) (header []string, samples []sample) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if s, ok := parseLine(lines.Text()); ok {
			samples = append(samples, s)
		} else if line := strings.TrimSpace(lines.Text()); line != "" {
			header = append(header, line)
		}
	}
	return header, samples
}
