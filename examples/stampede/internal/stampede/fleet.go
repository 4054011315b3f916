package stampede

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

// errGone means that a process of the fleet has ended.
var errGone = errors.New("has ended")

// fleet is the set of child processes.
type fleet struct{ children []*child }

type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	send    *json.Encoder
	replies chan reply // closed when the process has ended
}

func startFleet(processes int, cfg config, seen func(process int, now sample)) (*fleet, error) {
	f := &fleet{}
	for i := range processes {
		c, err := startChild(func(now sample) { seen(i, now) })
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

func startChild(seen func(sample)) (*child, error) {
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
			if r.Now != nil {
				seen(*r.Now)
				continue
			}
			c.replies <- r
		}
	}()
	return c, nil
}

// exchange sends a message to every process and waits for all answers.
func (f *fleet) exchange(ctx context.Context, message any) ([]reply, error) {
	for _, c := range f.children {
		if err := c.send.Encode(message); err != nil {
			return nil, fmt.Errorf("process %d %w: %w", c.cmd.Process.Pid, errGone, err)
		}
	}
	var replies []reply
	for _, c := range f.children {
		select {
		case r, ok := <-c.replies:
			if !ok {
				return nil, fmt.Errorf("process %d %w", c.cmd.Process.Pid, errGone)
			}
			replies = append(replies, r)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return replies, nil
}

// stop ends the processes and waits for them. It kills those that do not end by themselves.
func (f *fleet) stop() {
	for _, c := range f.children {
		c.stdin.Close()
	}
	late := time.AfterFunc(2*Patience, func() {
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
