// Package doctest tests what README.md and the pages in docs/ claim: the promises that no single
// package can test, the figures in tables, the names of tests, and the links. It has no code
// besides its tests.
package doctest
