package backend

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A URL is an address or one clear error, and neither an error nor the name that messages show
// contains the password.
func FuzzParse(f *testing.F) {
	for _, url := range []string{
		"redis://h", "redis://u:{}@h:1/2?timeout=1s", "rediss://:{}@[::1]:6379,h2/m/1", "postgres://u:{}@h,h2:5/d?create=true",
		"memcache://h?x={}", "redis://u:{}/@h", "redis://u:{}@h#x", "redis://:%41{}@h/%2F", "://{}", "redis://:{}@", "",
		"redis://h?timeout=1s&timeout=2s", "redis://a b", "redis://]:[", "redis://h:99999999999/999999", "redis://@:{}@h",
	} {
		f.Add(url)
	}
	const secret = "S3cr3tS3cr3t" // not part of anything else
	f.Fuzz(func(t *testing.T, url string) {
		a, err := parse(Config{URL: strings.ReplaceAll(url, "{}", secret), Password: "another " + secret})
		if err == nil {
			inHosts := strings.Contains(strings.Join(a.hosts, ","), secret) || strings.Contains(a.path, secret) ||
				strings.Contains(a.scheme, strings.ToLower(secret))
			if !inHosts {
				require.NotContains(t, a.name(), secret)
			}
			server, database, timeout := a.server("6379"), a.database(a.path), a.timeout()
			err = a.check()
			if inHosts || strings.Contains(strings.Join(keys(a.options), " "), secret) {
				return // it was not where passwords are
			}
			if err == nil {
				require.NotEmpty(t, server)
				require.GreaterOrEqual(t, database, 0)
				require.Positive(t, timeout)
				require.Empty(t, a.options)
			}
		}
		if err != nil && !strings.Contains(err.Error(), "timeout="+secret) {
			require.NotContains(t, err.Error(), secret)
			require.NotEmpty(t, err.Error())
		}
	})
}

func keys(options map[string]string) (names []string) {
	for name := range options {
		names = append(names, name)
	}
	return names
}
