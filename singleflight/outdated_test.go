package singleflight

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOutdated(t *testing.T) {
	var o outdated
	require.False(t, o.has("k"))
	require.Zero(t, o.when("k"))
	first := o.add("k")
	require.True(t, o.has("k"))
	require.False(t, o.has("other"))
	second := o.add("k")
	o.remove("k", first)
	require.True(t, o.has("k"), "it was added again")
	require.Equal(t, second, o.when("k"))
	o.remove("k", second)
	require.False(t, o.has("k"))
	require.Zero(t, o.n.Load())

	require.True(t, o.claim())
	require.False(t, o.claim())
	o.add("k")
	require.False(t, o.release(), "there is something left to do")
	require.False(t, o.claim())
	o.remove("k", o.when("k"))
	require.True(t, o.release())
	require.True(t, o.claim())
}
