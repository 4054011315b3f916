// Package tools is a module of its own that pins the programs which check the library, so that
// they are the same everywhere and never become requirements of the library's users. The programs
// are the tool directives of its go.mod, and the Makefile builds them.
package tools
