package proof

import (
	"os"
	"testing"
	"time"
)

// Duration returns how long each part of the proof lasts: the value of LOCKER_PROVE, or short if it
// is not set.
func Duration(tb testing.TB, short time.Duration) time.Duration {
	tb.Helper()
	text := os.Getenv("LOCKER_PROVE")
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		tb.Fatal("LOCKER_PROVE:", err)
	}
	return d
}

// ShortForm is why the proof runs on few backends unless all tests run.
const ShortForm = "the proof runs in memory and on one adapter, and the suite on every adapter"
