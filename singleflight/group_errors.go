package singleflight

import (
	"fmt"
)

// PanicError is what the callers of [Group.Do] and [Loader.Load] get who wait for a function that panics,
// other than the caller whose function it is, which panics itself. Where Value is an error,
// [errors.Is] and [errors.As] see it.
type PanicError struct {
	Value any    // what the function panicked with
	Stack []byte // where, as [debug.Stack] formats it

	key string
}

// Error returns a text of several lines, which includes the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q panicked: %v\n\n%s", e.key, e.Value, e.Stack)
}

// Unwrap returns Value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// exitError says that fn called runtime.Goexit, perhaps through testing.T.FailNow.
type exitError struct{ key string }

func (e *exitError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q ended its goroutine (runtime.Goexit)", e.key)
}

// reentryError says that fn waits for itself.
type reentryError struct{ key string }

func (e *reentryError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q calls itself", e.key)
}
