package singleflight

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m marks
		require.False(t, m.has("k"))
		m.clear("k")
		require.Nil(t, m.slots.Load(), "nothing is kept before the first mark")
		m.set("k", time.Now().Add(time.Second))
		require.True(t, m.has("k"))
		n := 0
		for i := range 10_000 {
			if m.has(strconv.Itoa(i)) {
				n++
			}
		}
		require.Less(t, n, 100)
		time.Sleep(time.Second)
		require.False(t, m.has("k"))
		m.set("k", time.Now().Add(time.Second))
		m.clear("k")
		require.False(t, m.has("k"))
	})
}
