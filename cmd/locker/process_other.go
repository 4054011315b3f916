//go:build !unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// notify returns the signals that arrive from now on.
func notify() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	return signals
}

func notifyStop(chan<- os.Signal) {}

func isDeadly(os.Signal) bool { return true }

// process is a command. This system has no process groups, so what it has started goes on.
type process struct {
	*exec.Cmd
	changes chan change
}

func startProcess(path string, args, env []string) (*process, error) {
	p := &process{&exec.Cmd{
		Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}, make(chan change)}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		err := p.Wait()
		c := change{status: p.ProcessState.ExitCode()}
		if _, ok := err.(*exec.ExitError); !ok {
			c.err = err
		}
		p.changes <- c
	}()
	return p, nil
}

// signal does nothing: the console sends Ctrl-C to the command itself.
func (p *process) signal(syscall.Signal) {}

// terminate ends the command at once: this system has no milder way.
func (p *process) terminate() { p.kill() }
func (p *process) kill()      { _ = p.Process.Kill() }
func (p *process) resume()    {}

func (p *process) killRest(time.Time)                            {}
func (p *process) suspend(syscall.Signal, <-chan os.Signal) bool { return false }
func (p *process) close()                                        {}
