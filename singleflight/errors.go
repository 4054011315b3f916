package singleflight

import (
	"fmt"
	"runtime/debug"
)

// keyError is an error of a call for key, which is doing something.
type keyError struct {
	doing, key string
	err        error
}

func (e *keyError) Error() string {
	return fmt.Sprintf("singleflight: %s %.64q: %v", e.doing, e.key, e.err)
}
func (e *keyError) Unwrap() error { return e.err }

// names reports whether the text of err begins with the key that it is the error of.
func names(err error, key string) bool {
	switch e := err.(type) {
	case *keyError:
		return e.key == key
	case *reentryError:
		return e.key == key
	case *exitError:
		return e.key == key
	case *PanicError: // which a source can return as well, perhaps as nil
		return e != nil && e.key == key
	case *RemoteError:
		return e != nil && e.Key == key
	}
	return false
}

// PanicError is the error of [Group.Do] and [Loader.Load] for callers that waited for a function
// that panicked. The caller whose function it is panics itself. So it does if a Cache panics while it
// reads a value, but then the program goes on if all callers have left. A Cache that panics while it
// stores a value is a StoreFailed event with this error, and one that panics while it deletes a value
// makes [Loader.Update] return it. If Value is an error, [errors.Is] and [errors.As] find it.
type PanicError struct {
	Value any    // what the function panicked with
	Stack []byte // where, as [debug.Stack] formats it

	key string
}

// Error returns several lines, which include the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q panicked: %v\n\n%s", e.key, e.Value, e.Stack)
}

// Unwrap returns Value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// recovered calls a method of the user's cache where nobody but the program would see its panic, and
// returns the panic as an error.
func recovered(key string, call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack(), key: key}
		}
	}()
	return call()
}

// exitError is the error of a call whose fn called runtime.Goexit, perhaps through
// testing.T.FailNow.
type exitError struct{ key string }

func (e *exitError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q ended its goroutine (runtime.Goexit)", e.key)
}

// reentryError is the error of a call that would wait for itself.
type reentryError struct{ key string }

func (e *reentryError) Error() string {
	return fmt.Sprintf("singleflight: the call for %.64q calls itself", e.key)
}
