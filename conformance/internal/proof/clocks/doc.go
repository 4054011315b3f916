// Package clocks tests the effect of wrong clocks on locks: servers whose clock is set by an hour
// or wobbles, and clients that are suspended.
package clocks
