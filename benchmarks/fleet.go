package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// fleet is some processes, fresh ones for each run: so whatever a contender leaves behind is gone with it,
// and one that hangs is killed.
type fleet struct{ children []*child }

type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	send    *json.Encoder
	replies chan reply // closed when the process has ended
}

// patience is how long a fleet may take beyond what it was told to do.
const patience = 10 * time.Second

// errHangs is the cause when that was not enough.
var errHangs = fmt.Errorf("not done %v after it should have been", patience)

// startFleet starts processes and returns when all are ready for orders.
func startFleet(ctx context.Context, processes int, j job) (*fleet, error) {
	f := &fleet{}
	for range processes {
		c, err := startChild()
		if err != nil {
			f.kill()
			return nil, err
		}
		f.children = append(f.children, c)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	messages := make([]any, processes)
	for i := range messages {
		j.Process = i
		messages[i] = j
	}
	replies, err := f.exchange(ctx, messages)
	for _, r := range replies {
		if r.Error != "" {
			err = errors.New(r.Error)
		}
	}
	if err != nil {
		f.kill()
		return nil, fmt.Errorf("start: %w", err)
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

// do has every process carry out an order, which should take no longer than for.
func (f *fleet) do(ctx context.Context, o order, takes time.Duration) ([]reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, takes+patience, errHangs)
	defer cancel()
	o.Start = time.Now().Add(time.Duration(5+len(f.children)) * time.Millisecond) // until all have the order
	messages := make([]any, len(f.children))
	for i := range messages {
		messages[i] = o
	}
	return f.exchange(ctx, messages)
}

// exchange sends each process its message and waits for the answers of all.
func (f *fleet) exchange(ctx context.Context, messages []any) ([]reply, error) {
	for i, c := range f.children {
		if err := c.send.Encode(messages[i]); err != nil {
			return nil, fmt.Errorf("a process does not listen: %w", err)
		}
	}
	var replies []reply
	for _, c := range f.children {
		select {
		case r, ok := <-c.replies:
			if !ok {
				return nil, errors.New("a process has ended")
			}
			replies = append(replies, r)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return replies, nil
}

// kill ends the processes at once and returns when all are gone. They are killed rather than told: what
// they hold has an expiry, and a peer that hangs must not keep us.
func (f *fleet) kill() {
	for _, c := range f.children {
		c.stdin.Close()
		_ = c.cmd.Process.Kill()
	}
	for _, c := range f.children {
		for range c.replies {
			// what was under way
		}
		_ = c.cmd.Wait()
	}
}
