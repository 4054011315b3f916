package faultproxy

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// However a connection delivers its bytes, they are cut into the same frames, which together are the
// bytes, and what has been forwarded already is not forwarded again.
func FuzzFrames(f *testing.F) {
	data := []byte{0, 0, 5, frameData, flagPadded, 0, 0, 0, 1, 2, 'a', 'b', 0, 0}
	headers := []byte{0, 0, 1, frameHeaders, 0, 0, 0, 0, 1, 'h', 0, 0, 1, frameContinuation, flagEndHeaders, 0, 0, 0, 1, 'h'}
	f.Add(append(bytes.Clone(headers), data...), uint8(1), uint8(3))
	f.Add(append(bytes.Clone(data), headers...), uint8(7), uint8(0))
	f.Add([]byte{0, 0, 1, frameData, flagPadded, 0, 0, 0, 1, 255}, uint8(2), uint8(200))
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0}, uint8(4), uint8(9))
	f.Fuzz(func(t *testing.T, in []byte, step, done uint8) {
		whole := frames{}
		whole.add(in)
		parts := frames{}
		already := min(int(done), len(in))
		parts.forwarded(in[:already])
		next, sent := already, already
		var all []byte
		for {
			f, rest, ok := whole.next()
			if !ok {
				require.Empty(t, rest)
				break
			}
			require.Equal(t, f, frame(rest), "nothing of it was forwarded")
			got, rest, ok := parts.next()
			for !ok && next < len(in) {
				end := min(next+1+int(step), len(in))
				parts.add(in[next:end])
				next = end
				got, rest, ok = parts.next()
			}
			require.True(t, ok)
			require.Equal(t, f, got)
			all = append(all, f...)
			require.True(t, bytes.HasSuffix(f, rest))
			require.Equal(t, max(len(all)-sent, 0), len(rest))
			sent = max(sent, len(all))

			content := f.content()
			require.LessOrEqual(t, len(content), len(f)-frameHeader)
			short := f.shortened(len(content) / 2)
			require.Equal(t, short.size(), len(short))
			require.Equal(t, string(content[:len(content)/2]), string(short.content()))
			require.Equal(t, f.stream(), short.stream())
			require.False(t, short.ends())
		}
		require.True(t, bytes.HasPrefix(in, all))
	})
}
