package undo

// Running returns how many works are running, and of how many owners.
func Running() (total, owners int) {
	running.mu.Lock()
	defer running.mu.Unlock()
	return running.total, len(running.of)
}
