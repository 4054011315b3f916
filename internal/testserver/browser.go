package testserver

import (
	"os"
	"os/exec"
	"testing"
)

// browsers lists the names of Chromium's executable on Debian and elsewhere.
var browsers = []string{"chromium-headless-shell", "chromium", "google-chrome"}

// Browser returns the path of Chromium's executable. The test starts and ends the browser.
func Browser(tb testing.TB) string {
	tb.Helper()
	for _, name := range browsers {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("LOCKER_TEST_SERVERS") == "require" {
		tb.Fatalf("%s is not installed, and LOCKER_TEST_SERVERS=require", browsers[0])
	}
	tb.Skipf("%s is not installed", browsers[0])
	return ""
}
