package locker

// KeysOf returns how many keys k remembers.
func KeysOf(k *Keyed) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(k.held.Len(), k.line.Waiting())
}

// Lines returns how many lines of callers that poll or try again there are in the process.
func Lines() (n int) {
	for i := range lines {
		n += lines[i].Waiting() + retries[i].Waiting()
	}
	return n
}
