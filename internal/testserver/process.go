package testserver

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"sync"
)

// process is a child that dies with us.
type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed once the process is gone and reaped
}

// startProcess runs a program whose output goes to logFile, with the user and the environment of its
// kind.
func startProcess(path string, args []string, dir, logFile string, k kind) (*process, error) {
	out, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	if k.env != nil {
		cmd.Env = append(os.Environ(), k.env...)
	}
	dieWithUs(cmd)
	if err := runAs(cmd, k.user); err != nil {
		return nil, err
	}

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	starter() <- func() {
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
			go func() {
				_ = cmd.Wait()
				close(p.done)
			}()
		}
		started <- err
	}
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// starter returns the queue of the one goroutine that starts processes. The kernel's "signal the
// child when the parent dies" means the parent *thread*, so the children must come from a thread
// that lives as long as the test binary: one goroutine, locked to its thread, that never ends.
var starter = sync.OnceValue(func() chan<- func() {
	queue := make(chan func())
	go func() {
		runtime.LockOSThread()
		// A goroutine inherits labels, and a test that looks for leaks by them must not find this
		// one.
		pprof.SetGoroutineLabels(context.Background())
		for f := range queue {
			f()
		}
	}()
	return queue
})

// kill ends the process whatever state it is in and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
