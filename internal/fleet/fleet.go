// Package fleet starts copies of the running program, which take orders from it and send it
// reports: real operating-system processes for tests and benchmarks.
//
//	func TestMain(m *testing.M) {
//		fleet.Main(map[string]fleet.Role{"holder": hold})
//		os.Exit(m.Run())
//	}
//
//	processes, err := fleet.Start("holder", 4)
//
// Orders and reports are JSON, over the standard input and output of each process. A process ends
// with its role, or when its parent is gone, however that ended.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// roleVariable in the environment makes this program a process of a fleet.
const roleVariable = "LOCKER_FLEET_ROLE"

// ErrEnded is the error of Receive when the process has ended.
var ErrEnded = errors.New("fleet: the process has ended")

// Fleet is several processes with one role.
type Fleet []*Process

// Process is one of them, as its parent sees it.
type Process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	orders  *json.Encoder
	reports chan json.RawMessage // closed when the process has ended
}

// Start starts n copies of this program, whose Main plays the role. Kill ends them.
func Start(role string, n int) (Fleet, error) {
	var f Fleet
	for range n {
		p, err := start(role)
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("fleet: start: %w", err)
		}
		f = append(f, p)
	}
	return f, nil
}

func start(role string) (*Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
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
	p := &Process{cmd: cmd, stdin: stdin, orders: json.NewEncoder(stdin), reports: make(chan json.RawMessage)}
	go func() {
		defer close(p.reports)
		for decoder := json.NewDecoder(stdout); ; {
			var report json.RawMessage
			if decoder.Decode(&report) != nil {
				return
			}
			p.reports <- report
		}
	}()
	return p, nil
}

// Send gives the process an order.
func (p *Process) Send(order any) error {
	if err := p.orders.Encode(order); err != nil {
		return fmt.Errorf("fleet: send: %w", err)
	}
	return nil
}

// Receive waits for the next report and decodes it into report, a pointer. Its error is ErrEnded,
// or the cause of ctx's end.
func (p *Process) Receive(ctx context.Context, report any) error {
	select {
	case message, ok := <-p.reports:
		if !ok {
			return ErrEnded
		}
		return json.Unmarshal(message, report)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Send gives every process the same order.
func (f Fleet) Send(order any) error {
	for _, p := range f {
		if err := p.Send(order); err != nil {
			return err
		}
	}
	return nil
}

// Receive waits for one report from each process and returns them in the order of the processes.
func Receive[Report any](ctx context.Context, f Fleet) ([]Report, error) {
	reports := make([]Report, len(f))
	for i, p := range f {
		if err := p.Receive(ctx, &reports[i]); err != nil {
			return nil, err
		}
	}
	return reports, nil
}

// Kill ends the processes as a crash would, and returns when all are gone.
func (f Fleet) Kill() {
	for _, p := range f {
		_ = p.stdin.Close()
		_ = p.cmd.Process.Kill()
	}
	for _, p := range f {
		for range p.reports {
			// what was under way
		}
		_ = p.cmd.Wait()
	}
}
