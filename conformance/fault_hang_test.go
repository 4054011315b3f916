package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTimedOut(t *testing.T) {
	const ms = time.Millisecond
	assert.True(t, timedOut(800*ms, 810*ms, 5*ms), "late on a machine that was quick meanwhile")
	assert.True(t, timedOut(800*ms, 810*ms, 300*ms), "late by the same each time")
	assert.True(t, timedOut(2800*ms, 4000*ms, 300*ms), "late by much more than the machine")
	assert.False(t, timedOut(450*ms, 900*ms, 300*ms), "late by different times on a slow machine")
	assert.False(t, timedOut(800*ms, 810*ms, 700*ms), "no later than the machine itself")
}
