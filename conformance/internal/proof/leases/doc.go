// Package leases holds locks in real processes, which are killed, stopped and cut off, and checks
// that no two of them believed that they held a lock at the same time. Its tests need Linux.
package leases
