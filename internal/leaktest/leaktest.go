// Package leaktest fails a package's tests if they leave goroutines behind.
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// It checks after the last test, so it also finds goroutines that no single test would detect, such
// as those of another Locker, of a server's helper or of a client library that was not closed.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience is how long goroutines may take to end after the last test. A subscription may take half
// a minute, which is the longest known time. Tests wait for all of patience only if there is a
// leak.
const patience = 90 * time.Second

// standing lists functions whose goroutines live as long as the process.
var standing = []string{
	"os/signal.loop",     // after the first signal.Notify
	"runtime.ensureSigM", // the same
	"github.com/golockers/locker/internal/testserver.init.func", // starts servers, which die with it
}

// Main runs the tests and exits the process. If they pass but leave goroutines behind, it prints
// their stacks and exits with status 1. A goroutine may stay if the name of a function on its stack
// begins with a string in except, or is known to live as long as the process.
func Main(m *testing.M, except ...string) {
	code := m.Run()
	if code == 0 {
		if left := settle(patience, except); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: the tests leave %d goroutines behind:\n\n%s\n", len(left),
				strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// settle waits until no goroutine is left or the time has passed, and returns the remaining stacks.
func settle(patience time.Duration, except []string) (left []string) {
	pause := time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		pause = min(2*pause, 500*time.Millisecond)
		final := time.Now().After(end) // read before the stacks, which take long on a busy machine
		left = goroutines(except)
		if len(left) == 0 || final {
			return left
		}
	}
}

// goroutines returns the stacks of all goroutines except the caller's and those that may stay.
func goroutines(except []string) []string {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := strings.Split(string(buf), "\n\n")[1:] // the first is the caller's
	return slices.DeleteFunc(all, func(stack string) bool { return mayStay(stack, except) })
}

// mayStay reports whether a function on the stack begins with one of the names.
func mayStay(stack string, except []string) bool {
	for line := range strings.Lines(stack) {
		line = strings.TrimPrefix(line, "created by ")
		for _, name := range slices.Concat(standing, except) {
			if strings.HasPrefix(line, name) {
				return true
			}
		}
	}
	return false
}
