package inflight

// Entries returns how many tokens have a call that was left behind.
func Entries(c *Calls) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.left)
}
