// Package sqltest tests package sqllock on databases. It is a module of its own, so that the drivers
// are no requirements of those who use sqllock.
package sqltest
