package inflight

// growStack makes the stack of a new goroutine as large as client libraries need it, while there is
// next to nothing to copy. Otherwise the runtime doubles the stack several times as calls nest, and
// copies more each time, which takes a tenth of a call's processor time. Pass false: what grows the
// stack is the size of the function's frame, not its code.
//
//go:noinline
func growStack(use bool) {
	if use {
		var room [4 << 10]byte
		fill(&room)
	}
}

//go:noinline
func fill(room *[4 << 10]byte) {
	for i := range room {
		room[i] = byte(i)
	}
}
