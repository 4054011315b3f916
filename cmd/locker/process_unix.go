//go:build unix

package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// forwarded are the signals that the command gets when locker does.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// notify returns the signals that arrive from now on. Those that are ignored, as under nohup, stay
// ignored, and so they are in the command.
func notify() chan os.Signal {
	signals := make(chan os.Signal, 64)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	if !signal.Ignored(syscall.SIGPIPE) { // a message that nobody reads must not end locker
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	return signals
}

// notifyStop adds Ctrl-Z, which stops locker as usual until there is a command. From then on the
// command gets it, and locker stops when the command has: otherwise the command would go on while its
// lock is not extended.
func notifyStop(signals chan<- os.Signal) {
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(signals, syscall.SIGTSTP)
	}
}

// isDeadly reports whether a signal ends a process that does not handle it.
func isDeadly(sig os.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// process is a command in a process group of its own.
type process struct {
	pid      int
	changes  chan change
	terminal *os.File // the controlling terminal; nil if there is none
}

// startProcess starts the command. If it is to have the terminal, it has it from the beginning; it
// is given the terminal later if it turns out to want it.
func startProcess(path string, args, env []string) (*process, error) {
	p := &process{changes: make(chan change)}
	p.terminal, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0)
	attr := &syscall.SysProcAttr{Setpgid: true}
	// In a pipeline other commands may need the terminal.
	if p.inForeground() && term.IsTerminal(0) && term.IsTerminal(1) {
		attr.Foreground, attr.Ctty = true, int(p.terminal.Fd())
	}
	dieWithUs(attr)
	started, err := os.StartProcess(path, args, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr,
	})
	if err != nil {
		if attr.Foreground {
			p.setForeground(syscall.Getpgrp()) // the child may have had it before it failed
		}
		return nil, err
	}
	p.pid = started.Pid
	go func() {
		for p.wait() {
		}
		_ = started.Release()
	}()
	return p, nil
}

// wait waits for the next change and reports whether the command goes on. Package os cannot wait for
// a process that stops. In a container locker may be the first process, which also has to wait for
// those whose parents have ended.
func (p *process) wait() bool {
	waitFor := p.pid
	if os.Getpid() == 1 {
		waitFor = -1
	}
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(waitFor, &status, syscall.WUNTRACED, nil)
	switch {
	case errors.Is(err, syscall.EINTR), err == nil && pid != p.pid:
		return true
	case err != nil:
		p.changes <- change{err: os.NewSyscallError("wait4", err)}
	case status.Stopped():
		p.changes <- change{stopped: status.StopSignal()}
		return true
	case status.Signaled():
		p.changes <- change{status: statusSignal + int(status.Signal())}
	default:
		p.changes <- change{status: status.ExitStatus()}
	}
	return false
}

// signal sends a signal to the command and to all processes of its group.
func (p *process) signal(sig syscall.Signal) { _ = syscall.Kill(-p.pid, sig) }

func (p *process) kill()   { p.signal(syscall.SIGKILL) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }

// terminate asks the command to end. Processes that are stopped handle the signal only when they
// continue.
func (p *process) terminate() {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
}

// killRest waits until the group of a command that has ended is empty. At the given time it kills
// what is left.
func (p *process) killRest(at time.Time) {
	const often = 10 * time.Millisecond
	for ; !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH); time.Sleep(often) {
		if !time.Now().Before(at) {
			p.kill()
			return
		}
	}
}

// inForeground reports whether locker is in the foreground of its terminal.
func (p *process) inForeground() bool {
	if p.terminal == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(p.terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// setForeground gives the terminal to a process group. A process in the background that does so is
// stopped unless it ignores SIGTTOU.
func (p *process) setForeground(group int) {
	if p.terminal == nil {
		return
	}
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(p.terminal.Fd()), unix.TIOCSPGRP, group)
}

// takeTerminal takes the terminal back from the command, if it has it.
func (p *process) takeTerminal() {
	if p.terminal == nil {
		return
	}
	group, err := unix.IoctlGetInt(int(p.terminal.Fd()), unix.TIOCGPGRP)
	if err == nil && group == p.pid {
		p.setForeground(syscall.Getpgrp())
	}
}

// suspend handles a command that was stopped by sig and reports whether it is to be continued. After
// Ctrl-Z, and when it wants the terminal but locker is in the background, locker stops as well, with
// all that the shell takes for one job, until the shell continues it.
func (p *process) suspend(sig syscall.Signal, signals <-chan os.Signal) bool {
	wantsTerminal := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	if p.terminal == nil || sig != syscall.SIGTSTP && !wantsTerminal {
		return false
	}
	hadTerminal := false
	if !(wantsTerminal && p.inForeground()) {
		group, err := unix.IoctlGetInt(int(p.terminal.Fd()), unix.TIOCGPGRP)
		hadTerminal = err == nil && group == p.pid
		p.takeTerminal()
		p.stopSelf(signals)
	}
	if (wantsTerminal || hadTerminal) && p.inForeground() {
		p.setForeground(p.pid)
	}
	return true
}

// stopSelf stops locker's group until the shell continues it. In the group of the session's leader
// there is no shell that would, so it returns at once. The signal is not SIGTSTP, whose default action
// package signal cannot restore.
func (p *process) stopSelf(signals <-chan os.Signal) {
	if session, err := unix.Getsid(0); err != nil || session == syscall.Getpgrp() {
		return
	}
	for len(signals) > 0 {
		p.signal((<-signals).(syscall.Signal))
	}
	_ = syscall.Kill(0, syscall.SIGSTOP)
	for sig := range signals {
		if sig == syscall.SIGCONT {
			return
		}
		p.signal(sig.(syscall.Signal))
	}
}

func (p *process) close() {
	p.takeTerminal()
	if p.terminal != nil {
		_ = p.terminal.Close()
	}
}
