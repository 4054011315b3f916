package testserver

import (
	"os"
	"testing"
)

// selection is the environment variable that chooses which tests run: if it is "all", the variants
// of `make test-all` do too.
const selection = "LOCKER_TEST"

// All reports whether the variants of `make test-all` are to run.
func All() bool { return os.Getenv(selection) == "all" }

// Variant skips the test unless the variants of `make test-all` are to run. Why explains why the
// tests that always run cover a change well enough without it.
func Variant(t testing.TB, why string) {
	t.Helper()
	if !All() {
		t.Skipf("%s; %s=all runs it", why, selection)
	}
}
