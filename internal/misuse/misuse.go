// Package misuse has the error of a Locker that can never work. It is a package of its own so that
// the packages below package locker can tell this error from others.
package misuse

import "errors"

// ErrInvalidLocker is locker.ErrInvalidLocker.
var ErrInvalidLocker = errors.New("invalid Locker")

// New returns an error with that text which is ErrInvalidLocker.
func New(text string) error { return &misuse{text} }

type misuse struct{ text string }

func (e *misuse) Error() string        { return e.text }
func (e *misuse) Is(target error) bool { return target == ErrInvalidLocker }
