package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
)

// The exit statuses, besides that of the command. Those from 64 to 78 are from sysexits.h.
const (
	statusFailed        = 1   // break: nothing was broken
	statusUsage         = 64  // EX_USAGE
	statusUnavailable   = 69  // EX_UNAVAILABLE: the backend failed
	statusHeld          = 75  // EX_TEMPFAIL: the lock is held elsewhere
	statusLost          = 76  // EX_PROTOCOL: the lock was lost
	statusNotExecutable = 126 // as of a shell
	statusNotFound      = 127 // as of a shell
	statusSignal        = 128 // plus the number of the signal
)

const statusHelp = `  0        the command succeeded
  64       wrong flags, an unknown backend, a wrong URL, or a run inside a run for the same lock
  69       the backend failed: it did not answer, or refused the request
  75       the lock is held elsewhere, and the command was not started
  76       the lock was lost: the command was stopped, or has ended meanwhile
  126      the command cannot be executed
  127      the command was not found
  128 + n  the command, or locker while it waited, was ended by signal n
  other    the command's own status`

// statusError is an error with the exit status that it stands for. Without a cause nothing is
// printed.
type statusError struct {
	status int
	cause  error
}

func (e *statusError) Error() string {
	if e.cause == nil {
		return ""
	}
	return e.cause.Error()
}

func (e *statusError) Unwrap() error { return e.cause }

func withStatus(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf(format, args...)}
}

// statusOf returns the exit status for an error. One without a status is cobra's, about flags.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	if e := (*statusError)(nil); errors.As(err, &e) {
		return e.status
	}
	return statusUsage
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// backendError returns the error of an operation on b, with what to do about it.
func backendError(b *backend.Backend, err error) error {
	switch {
	case errors.Is(err, locker.ErrInvalidKey), errors.Is(err, locker.ErrInvalidTTL):
		return &statusError{statusUsage, cause(err)}
	case errors.Is(err, errors.ErrUnsupported):
		return withStatus(statusUnavailable, "%s: %w", b.Name, cause(err))
	}
	return withStatus(statusUnavailable, "%s: %w; %s", b.Name, cause(err), advice(err))
}

// cause removes the operation and the key, which package locker puts in front.
func cause(err error) error {
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "locker: ") {
		return inner
	}
	return err
}

func advice(err error) string {
	text := err.Error()
	for _, known := range []struct{ part, advice string }{
		{"WRONGPASS", "check the user in the URL and the password (LOCKER_PASSWORD or --password-file)"},
		{"invalid password", "check the password (LOCKER_PASSWORD or --password-file)"},
		{"NOAUTH", "set the password with LOCKER_PASSWORD or --password-file"},
		{"NOPERM", "see the access rules in docs/operations.md"},
		{"READONLY", "this server is a replica: use its master, or redis+sentinel://"},
		{"MOVED", "this server is part of a cluster: use redis+cluster://"},
		{"CROSSSLOT", "this server is part of a cluster: use redis+cluster://"},
		{"cluster support disabled", "this server is not part of a cluster: use redis://"},
		{"unknown authority", "give the server's certificate authority with the option ca=FILE"},
		{"first record does not look like a TLS handshake", "the server does not use TLS: use redis://"},
		{"connection refused", "check that the server runs, and the host and port in the URL"},
		{"no such host", "check the host in the URL"},
		{"in the format of package redigo", "use redigo://, or another prefix"},
		{"no lock of this package", "use redis://, or another prefix"},
		{"OOM", "the server is full"},
		{"WRONGTYPE", "another program keeps something else there: choose another key, or the option prefix"},
		{"no answer within", "the server does not answer in time: check that the server runs, the URL, and the network"},
		{"no connection within", "the server does not answer in time: check that the server runs, the URL, and the network"},
	} {
		if strings.Contains(text, known.part) {
			return known.advice
		}
	}
	var netErr net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "check that the server runs, and the host and port in the URL"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return "the server does not answer in time: check the URL, the network, and the option timeout"
	}
	return "check the server and the URL"
}
