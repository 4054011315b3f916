package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/golockers/locker"
)

// supervisor watches a command and its lock.
type supervisor struct {
	*holding
	process *process
	signals <-chan os.Signal

	loss   error     // why the command is being stopped; nil while it is not
	killAt time.Time // when the command gets SIGKILL, once it is being stopped
}

// change is what has happened to the command.
type change struct {
	stopped syscall.Signal // it was stopped by that signal, unless it is 0
	status  int            // of a command that has ended
	err     error          // the end is not known
}

// supervise returns when the command has ended and the lock is released.
func (s *supervisor) supervise() error {
	lost := s.lease.Lost()
	alarm := time.NewTimer(s.left())
	defer alarm.Stop()
	for {
		select {
		case sig := <-s.signals:
			s.process.signal(sig.(syscall.Signal))
		case <-alarm.C:
			switch {
			case s.loss != nil:
				s.process.kill()
			case s.left() <= 0:
				s.stop()
				alarm.Reset(time.Until(s.killAt))
			default:
				alarm.Reset(s.left())
			}
		case <-lost:
			lost = nil
			if s.loss == nil {
				s.stop()
				alarm.Reset(time.Until(s.killAt))
			}
		case c := <-s.process.changes:
			if c.stopped != 0 {
				s.stopped(c.stopped)
				continue
			}
			if s.loss != nil {
				s.process.killRest(s.killAt)
			}
			s.process.close()
			return s.end(c)
		}
	}
}

// left returns the time after which the command must be stopped, as far as is known now.
func (s *supervisor) left() time.Duration {
	return time.Until(s.lease.Deadline()) - s.flags.grace
}

// stop begins to stop a command whose lock is lost, or will be when the grace is over.
func (s *supervisor) stop() {
	s.killAt = time.Now().Add(s.flags.grace)
	if s.loss = s.lease.Err(); s.loss == nil {
		s.killAt = s.lease.Deadline()
		s.loss = fmt.Errorf("%s: %w", s.backend.Name, s.reason())
	}
	s.process.terminate()
	say("the lock %q is lost, so the command is stopped: %s", s.flags.key, oneLine(cause(s.loss)))
}

// reason returns why the lock was not extended in time. The last extension may have ended without an
// answer or not have ended yet, since its time limit passes at about the moment when a command with
// the default grace has to be stopped. Both give the same reason.
func (s *supervisor) reason() error {
	if err := cause(s.observer.err()); err != nil && err != context.DeadlineExceeded { // else its text says less
		return err
	}
	extended := s.lease.Deadline().Add(-s.flags.ttl)
	return fmt.Errorf("no answer yet; the lock was taken or extended %v ago", round(time.Since(extended)))
}

// stopped follows a command that the terminal has stopped, or gives it the terminal that it wants. A
// command that got SIGSTOP keeps its lock: another process has stopped it and will continue it.
func (s *supervisor) stopped(sig syscall.Signal) {
	if s.loss != nil || !s.process.suspend(sig, s.signals) {
		return
	}
	if s.left() <= 0 { // time has passed; the next round finds out, and the command must not run before
		return
	}
	s.process.resume()
}

// end releases the lock after the command has ended, and returns the error with the exit status.
func (s *supervisor) end(c change) error {
	err := s.lease.Unlock(context.Background())
	key := s.flags.key
	switch {
	case s.loss != nil:
		return &statusError{status: statusLost} // stop has printed the reason
	case errors.Is(err, locker.ErrNotHeld):
		return withStatus(statusLost, "the lock %q was lost while the command ran, which has ended with status %d: %w; "+
			"another holder may have run at the same time", key, c.status, cause(err))
	case c.err != nil:
		return withStatus(statusUnavailable, "the command: %w", c.err)
	case err != nil && c.status == 0:
		return withStatus(statusUnavailable, "the command succeeded, but the lock %q could not be released: %w; "+
			"it ends within %v", key, cause(err), max(s.flags.ttl, s.flags.minHold))
	case err != nil:
		return withStatus(c.status, "the lock %q could not be released: %w; it ends within %v",
			key, cause(err), max(s.flags.ttl, s.flags.minHold))
	case c.status != 0:
		return &statusError{status: c.status}
	}
	return nil
}
