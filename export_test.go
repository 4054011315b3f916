package locker

// KeysOf returns how many keys k remembers.
func KeysOf(k *Keyed) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.keys)
}
