package locker

// This file tells what a Locker can do beyond the three operations, also if it is wrapped.

// CanWait reports whether l keeps a queue: whether it is a [Waiter], and not one that only forwards
// Wait to a Locker without a queue.
//
// A wrapper such as that of [Observed] has the methods of all optional interfaces, and those that it
// forwards return [errors.ErrUnsupported] where the wrapped Locker has none. So a type assertion says
// little about it, and CanWait, [CanWatch], [CanFence], [CanInspect] and [CanList] ask what it wraps. A
// wrapper answers them by a method Forwards(method string) Locker, which returns the Locker to which
// it forwards the method of that name, such as "Wait", or nil if it has the method by itself. They
// make no request, so even after true the method may return ErrUnsupported for a key or a server.
func CanWait(l Locker) bool { return can[Waiter](l, "Wait") }

// CanWatch reports whether l can tell when a lock may have become free: see [CanWait] and [Watcher].
func CanWatch(l Locker) bool { return can[Watcher](l, "Watch") }

// CanFence reports whether l can mint fencing numbers: see [CanWait] and [Fencer].
func CanFence(l Locker) bool { return can[Fencer](l, "Fence") }

// CanInspect reports whether l reports who holds a lock: see [CanWait] and [Inspector].
func CanInspect(l Locker) bool { return can[Inspector](l, "Inspect") }

// CanList reports whether l enumerates the locks that are held: see [CanWait] and [Lister].
func CanList(l Locker) bool { return can[Lister](l, "List") }

func can[T Locker](l Locker, method string) bool {
	for l != nil {
		if _, ok := l.(T); !ok {
			return false
		}
		f, ok := l.(interface{ Forwards(method string) Locker })
		if !ok {
			return true
		}
		next := f.Forwards(method)
		if next == nil {
			return true
		}
		l = next
	}
	return false
}
