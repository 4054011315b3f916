package proof

import (
	"os"
	"testing"
	"time"
)

// Duration returns how long each part of the proof lasts: LOCKER_PROVE, or short without it.
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
