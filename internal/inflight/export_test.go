package inflight

// Entries is how many tokens have a call left behind.
func Entries(c *Calls) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.left)
}
