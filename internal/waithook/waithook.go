// Package waithook lets a Waiter report that a caller was refused and now waits. Only the Waiter
// knows when that happens: its method returns when the waiting is over.
package waithook

import "context"

// Key is the key of the [Hook] among the values of the context of a Wait.
type Key struct{}

// Hook has the function to call when the caller begins to wait. Calls after the first have no
// effect.
type Hook interface{ NoteWaiting() }

// Call is for a Waiter that has found the lock to be held.
func Call(ctx context.Context) {
	if h, ok := ctx.Value(Key{}).(Hook); ok {
		h.NoteWaiting()
	}
}
