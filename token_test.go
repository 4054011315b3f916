package locker

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every bit of a token is random, and none repeats another.
func TestRandomToken(t *testing.T) {
	const n = 2000
	var bits [n][]bool
	seen := map[string]bool{}
	for i := range bits {
		token := randomToken()
		assert.Len(t, token, 26)
		assert.False(t, seen[token])
		seen[token] = true
		for j := range token {
			v := strings.IndexByte(tokenAlphabet, token[j])
			assert.GreaterOrEqual(t, v, 0, token)
			width := 5
			if j%13 == 12 { // the rest of 64 bits
				assert.Less(t, v, 1<<4)
				width = 4
			}
			for b := range width {
				bits[i] = append(bits[i], v>>b&1 == 1)
			}
		}
		assert.Len(t, bits[i], 128)
	}
	for a := range 128 {
		for b := range a + 1 { // two bits are equal half of the time; a bit is set half of the time
			same := 0
			for i := range bits {
				if bits[i][a] == (a == b || bits[i][b]) {
					same++
				}
			}
			assert.InDelta(t, n/2, same, n/6, "bits %d and %d", a, b) // about 15 standard deviations
		}
	}
}
