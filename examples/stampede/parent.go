package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// result is the outcome of one strategy.
type result struct {
	strategy string
	first    round // opens connections: it has to be right, but is not in the table
	rounds   []round
}

// round is one expiry of the key under one strategy.
type round struct {
	queries  int64
	requests int64
	median   time.Duration
	last     time.Duration
}

// run starts the server, the database and the fleet, runs every strategy through its rounds, and leaves nothing
// behind. With an error it also returns the results of the strategies that were done by then.
func run(ctx context.Context, s settings, p progress) (results []result, err error) {
	defer p.close()
	srv, addr, err := openServer(ctx, s.backend)
	if err != nil {
		return nil, err
	}
	defer srv.close()
	dir, err := os.MkdirTemp("", "stampede-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "items.db")
	db, err := openDatabase(file)
	if err != nil {
		return nil, err
	}
	defer db.close()
	if err := db.create(ctx); err != nil {
		return nil, err
	}

	key := "stampede/" + rand.Text() // others may use the server as well
	defer srv.expire(context.WithoutCancel(ctx), key)
	fleet, err := startFleet(s.processes, config{
		Backend: addr, Database: file, Key: key, Goroutines: s.goroutines, Load: s.load, Timeout: s.timeout,
	})
	if err != nil {
		return nil, err
	}
	defer fleet.stop()

	r := rounds{db: db, server: srv, fleet: fleet, key: key}
	for _, strategy := range strategies {
		result := result{strategy: strategy.name}
		p.describe(strategy.name)
		for i := range s.rounds + 1 {
			one, err := r.run(ctx, strategy.name)
			if err != nil {
				return results, fmt.Errorf("%s, round %d: %w", strategy.name, i, err)
			}
			if i == 0 {
				result.first = one
			} else {
				result.rounds = append(result.rounds, one)
			}
			p.add(1)
		}
		results = append(results, result)
	}
	return results, nil
}

// rounds is what a round needs.
type rounds struct {
	db     *database
	server server
	fleet  *fleet
	key    string
	number int
}

// run changes the value in the database, lets the cached one expire and sends the fleet off.
func (r *rounds) run(ctx context.Context, strategy string) (round, error) {
	r.number++
	want := fmt.Sprintf("value %d", r.number)
	if err := r.db.set(ctx, r.key, want); err != nil {
		return round{}, err
	}
	if err := r.server.expire(ctx, r.key); err != nil {
		return round{}, fmt.Errorf("expire the key: %w", err)
	}
	before, err := r.server.requests(ctx)
	if err != nil {
		return round{}, err
	}
	// The time ahead is for the command to arrive everywhere.
	replies, err := r.fleet.do(ctx, command{Strategy: strategy, Start: time.Now().Add(50 * time.Millisecond)})
	if err != nil {
		return round{}, err
	}
	after, err := r.server.requests(ctx)
	if err != nil {
		return round{}, err
	}
	one, err := gather(replies, want)
	one.requests = after - before
	return one, err
}

// gather combines the replies of all processes. If a caller did not get the value that is in the database, it
// returns an error.
func gather(replies []reply, want string) (round, error) {
	var one round
	var took []time.Duration
	for _, r := range replies {
		if r.Failed > 0 {
			return one, fmt.Errorf("%d callers of a process failed: %s", r.Failed, r.Error)
		}
		for value, callers := range r.Values {
			if value != want {
				return one, fmt.Errorf("%d callers of a process got %q instead of %q", callers, value, want)
			}
		}
		took = append(took, r.Took...)
		one.queries += r.Queries
	}
	slices.Sort(took)
	one.median, one.last = took[len(took)/2], took[len(took)-1]
	return one, nil
}

// verdict is an error when the layered strategy did not query the database exactly once in every round.
func verdict(results []result) error {
	for _, r := range results {
		if r.strategy != layered {
			continue
		}
		wrong := 0
		for _, one := range append(r.rounds, r.first) {
			if one.queries != 1 {
				wrong++
			}
		}
		if wrong > 0 {
			return fmt.Errorf("%s: not exactly one database query in %d of %d rounds", layered, wrong, len(r.rounds)+1)
		}
	}
	return nil
}

// fleet is the processes.
type fleet struct{ children []*child }

type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	send    *json.Encoder
	replies chan reply // closed when the process has ended
}

func startFleet(processes int, cfg config) (*fleet, error) {
	f := &fleet{}
	for range processes {
		c, err := startChild()
		if err != nil {
			f.stop()
			return nil, err
		}
		f.children = append(f.children, c)
	}
	replies, err := f.exchange(context.Background(), cfg)
	for _, r := range replies {
		if r.Error != "" {
			err = errors.New(r.Error)
		}
	}
	if err != nil {
		f.stop()
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	return f, nil
}

func startChild() (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, send: json.NewEncoder(stdin), replies: make(chan reply, 1)}
	go func() {
		defer close(c.replies)
		for decoder := json.NewDecoder(stdout); ; {
			var r reply
			if decoder.Decode(&r) != nil {
				return
			}
			c.replies <- r
		}
	}()
	return c, nil
}

// do makes every process carry out a command.
func (f *fleet) do(ctx context.Context, c command) ([]reply, error) { return f.exchange(ctx, c) }

// exchange sends a message to every process and waits for the answers of all.
func (f *fleet) exchange(ctx context.Context, message any) ([]reply, error) {
	for _, c := range f.children {
		if err := c.send.Encode(message); err != nil {
			return nil, fmt.Errorf("process %d: %w", c.cmd.Process.Pid, err)
		}
	}
	var replies []reply
	for _, c := range f.children {
		select {
		case r, ok := <-c.replies:
			if !ok {
				return nil, fmt.Errorf("process %d has ended", c.cmd.Process.Pid)
			}
			replies = append(replies, r)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return replies, nil
}

// stop ends the processes and returns when all are gone. It kills those that do not end by themselves.
func (f *fleet) stop() {
	for _, c := range f.children {
		c.stdin.Close()
	}
	late := time.AfterFunc(2*patience, func() {
		for _, c := range f.children {
			_ = c.cmd.Process.Kill()
		}
	})
	defer late.Stop()
	for _, c := range f.children {
		for range c.replies {
			// what was under way
		}
		_ = c.cmd.Wait()
	}
}
