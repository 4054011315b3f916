// Package exampletest runs examples that need a server. The testing package runs every example
// that has an Output comment, also where the server is not installed, so these have none and are
// run by a test.
package exampletest

import (
	"io"
	"os"
	"testing"
)

// Output returns what example prints. It replaces [os.Stdout], so the test must not be parallel.
func Output(tb testing.TB, example func()) string {
	tb.Helper()
	stdout := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	printed := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		printed <- string(b)
	}()
	func() {
		defer func() {
			os.Stdout = stdout
			w.Close()
		}()
		os.Stdout = w
		example()
	}()
	return <-printed
}
