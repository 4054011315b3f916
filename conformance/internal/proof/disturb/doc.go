// Package disturb proves what happens to locks under load while their server is disturbed: flushed,
// full, paused, restarted, out of connections, or with other rights.
package disturb
