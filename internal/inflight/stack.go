package inflight

// growStack makes room on the stack of a new goroutine for what client libraries need, while there
// is next to nothing on it. Otherwise the runtime doubles the stack several times on the way down,
// and copies more each time, which takes a tenth of a call's processor time. Pass false: the room is
// needed for the function's frame, not by its code.
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
