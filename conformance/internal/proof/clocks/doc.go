// Package clocks proves what wrong clocks do to locks: servers whose clock is set by an hour or
// wobbles, and clients that are suspended.
package clocks
