package redislock

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

// An owner that did not answer in time is not asked again until its late answer arrives.
func TestSilentOwners(t *testing.T) {
	var a asker
	assert.False(t, a.isSilent("slow"))
	a.noteSilent("1", "slow")
	a.noteSilent("2", "stopped")
	assert.True(t, a.isSilent("slow"))
	a.answered("used 1")
	assert.False(t, a.isSilent("slow"))
	assert.True(t, a.isSilent("stopped"))
	for i := range 10 * maxSilent {
		a.noteSilent(strconv.Itoa(i), "mark"+strconv.Itoa(i%7))
	}
	assert.LessOrEqual(t, len(a.silent)+len(a.late), 2*maxSilent)
}
