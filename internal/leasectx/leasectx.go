// Package leasectx defines how a context carries leases, for package locker and for packages that
// run the work of one caller for others.
package leasectx

import "context"

// Key is the key of the [Carrier] in a context.
type Key struct{}

// Carrier is what a context that carries leases has as the value of Key. It can be compared.
type Carrier interface {
	// Carries reports whether the context carries a lease that holds the lock of key on l, which
	// is a Locker: a caller that waited for that lock with the context would wait for itself.
	Carries(l any, key string) bool
}

// Of returns the Carrier of ctx, or nil if ctx carries no leases.
func Of(ctx context.Context) Carrier {
	c, _ := ctx.Value(Key{}).(Carrier)
	return c
}

// Hide returns a context that is ctx without its leases: for work that the holder of the leases
// does not wait for.
func Hide(ctx context.Context) context.Context { return hidden{ctx} }

type hidden struct{ context.Context }

func (h hidden) Value(key any) any {
	if key == (Key{}) {
		return nil
	}
	return h.Context.Value(key)
}
