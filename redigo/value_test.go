package redigo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDecode(t *testing.T) {
	for in, want := range map[string]value{
		"1700000000123:token":          {1700000000123, "token"},
		"0:t":                          {0, "t"},
		"5::":                          {5, ":"},
		"5:6:7":                        {5, "6:7"},
		"5:\x00\r\n ":                  {5, "\x00\r\n "},
		"9223372036854775807:t":        {9223372036854775807, "t"},
		"1700000000":                   {1700000000000, ""}, // seconds
		"1700000000.5":                 {1700000000500, ""},
		"1700000000.0001":              {1700000000001, ""}, // up
		"100000000":                    {100000000000, ""},
		"99999999999":                  {99999999999000, ""},
		"100000000000":                 {100000000000, ""}, // milliseconds
		"1700000000123":                {1700000000123, ""},
		"1700000000123.00000000000":    {1700000000123, ""},
		"99999999999999":               {99999999999999, ""},
		"5:" + strings.Repeat("x", 99): {5, strings.Repeat("x", 99)},
	} {
		got, err := decode([]byte(in))
		assert.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{
		"", ":", ":t", "5:", "05:t", "+5:t", "-5:t", " 5:t", "5 :t", "5.0:t", "0x5:t", "t:5", "٥:t",
		"9223372036854775808:t", // no int64
		"1", "0", "99999999", "locked", "true", "-1700000000", "+1700000000", " 1700000000", "1700000000 ",
		"1700000000.", ".5", "1.7e9", "1700000000,5", "NaN", "Inf", "1_700_000_000",
		"100000000000000", "1700000000000000", "1700000000000000000", // microseconds, nanoseconds
		strings.Repeat("1", 400), "1700000000." + strings.Repeat("0", 400),
	} {
		_, err := decode([]byte(in))
		if assert.ErrorIs(t, err, errForeign, in) {
			assert.Less(t, len(err.Error()), 500, "the error shows all of a long value")
		}
	}
}

func TestExpired(t *testing.T) {
	v := value{expiry: 1000}
	assert.False(t, v.expired(999_999))
	assert.True(t, v.expired(1_000_000))
}

// A value is read as it was written, and belongs to its token alone.
func FuzzEncode(f *testing.F) {
	for _, token := range []string{"t", ":", "a:b", "1", "1700000000", "\x00", "\r\n", "ü", "\xff"} {
		f.Add(int64(1700000000123), token, token+":")
		f.Add(int64(0), token, "1:"+token)
	}
	f.Fuzz(func(t *testing.T, expiry int64, token, other string) {
		if expiry < 0 || token == "" || other == "" {
			return
		}
		v := value{expiry, token}
		got, err := decode([]byte(v.encode()))
		require.NoError(t, err)
		require.Equal(t, v, got)
		require.True(t, got.ownedBy(token))
		require.Equal(t, token == other, got.ownedBy(other))
		require.Equal(t, token == other, v.encode() == value{expiry, other}.encode())
	})
}

// A value is one that was written, or a plain number, or an error. Nothing panics.
func FuzzDecode(f *testing.F) {
	for _, in := range []string{
		"1700000000123:token", "1700000000", "1700000000.25", "1700000000123", "", ":", "5:", "05:t", "+5:t",
		"1", "locked", "1e9", "9223372036854775808:t", "99999999999999.9", "-1",
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, err := decode(in)
		switch {
		case err != nil:
			require.ErrorIs(t, err, errForeign)
			require.Zero(t, v)
		case v.token != "":
			require.Equal(t, string(in), v.encode(), "two values for one lock")
		default:
			require.NotContains(t, string(in), ":")
			require.False(t, v.ownedBy(""), "a plain number has no owner")
			require.GreaterOrEqual(t, v.expiry, int64(firstMillisecond))
			require.LessOrEqual(t, v.expiry, int64(lastMillisecond))
		}
	})
}
