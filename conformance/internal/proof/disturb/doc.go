// Package disturb tests locks under load while their server is disturbed: flushed, full, paused,
// restarted, out of connections, or with changed permissions.
package disturb
