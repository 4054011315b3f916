package inflight

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Apart is a function that runs in a goroutine of its own. Its caller takes the outcome with
// [Apart.Result] or abandons it with [Apart.Leave]. A panic reaches the caller if it has not left,
// and otherwise ends the process like any unrecovered one.
type Apart[T any] struct {
	done chan struct{} // closed last

	mu    sync.Mutex
	over  bool   // the function has ended
	left  bool   // the caller has left; not after over
	ended func() // the argument of Leave

	// Set before done is closed:
	v        T
	err      error
	panicked *Panic
}

// Panic is the value with which [Apart.Result] panics if the function panicked. It has the
// function's own value and stack, which the caller's stack does not show.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n\n%s", p.Value, p.Stack) }

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// ErrGoexit is the error of a function that ended its goroutine instead of returning.
var ErrGoexit = errors.New("the call ended its goroutine with runtime.Goexit")

// Go starts f.
func Go[T any](f func() (T, error)) *Apart[T] {
	a := &Apart[T]{done: make(chan struct{}), err: ErrGoexit}
	go func() {
		growStack(false)
		returned := false
		defer close(a.done)
		defer func() {
			// If the panic is not recovered, it goes on from here.
			if !a.end() && !returned {
				if value := recover(); value != nil {
					a.panicked = &Panic{value, debug.Stack()}
				}
			}
		}()
		v, err := f()
		a.v, a.err, returned = v, err, true
	}()
	return a
}

// end records that the function has ended, and reports whether the caller has left.
func (a *Apart[T]) end() bool {
	a.mu.Lock()
	a.over = true
	left, ended := a.left, a.ended
	a.mu.Unlock()
	if ended != nil {
		ended()
	}
	return left
}

// Done returns a channel that is closed when f has ended.
func (a *Apart[T]) Done() <-chan struct{} { return a.done }

// Result waits until f has ended and returns what f returned, or [ErrGoexit] if it ended its
// goroutine. If f panicked, Result panics with a [*Panic].
func (a *Apart[T]) Result() (T, error) {
	<-a.done
	if a.panicked != nil {
		panic(a.panicked)
	}
	return a.v, a.err
}

// Leave abandons the outcome and reports true if f is still running; ended is called when f ends.
// Otherwise it does nothing and reports false: the caller must take the outcome, which may be a
// panic.
func (a *Apart[T]) Leave(ended func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.left, a.ended = true, ended
	return true
}
