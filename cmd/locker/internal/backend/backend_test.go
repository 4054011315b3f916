package backend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestName(t *testing.T) {
	t.Parallel()
	for url, name := range map[string]string{
		"redis://h":                                    "redis://h",
		"REDIS://h:1/2":                                "redis://h:1/2",
		"redis://u:secret@h:1/2?timeout=1s":            "redis://h:1/2",
		"redis://u:se%40cr%2Fet@[::1]:1":               "redis://[::1]:1",
		"redis://:se@cret@h":                           "redis://h",
		"rediss://:secret@h?insecure=true":             "rediss://h",
		"redis+sentinel://a,b:1/m/3?prefix=x":          "redis+sentinel://a,b:1/m/3",
		"redis+cluster://u:secret@a:1,b:1":             "redis+cluster://a:1,b:1",
		"redigo://:secret@h/1":                         "redigo://h/1",
		"redigos://:secret@h/1?server-name=n":          "redigos://h/1",
		"memcache://127.0.0.1:11211,[::1]?timeout=1s":  "memcache://127.0.0.1:11211,[::1]",
		"postgres://u:secret@h/d?table=s.t":            "postgres://h/d",
		"postgresql://:secret@a:1,b/d?sslmode=disable": "postgresql://a:1,b/d",
		"mysql://u:secret@h/d?table=t&tls=true":        "mysql://h/d",
		"sqlite://dir/a%20b.db":                        "sqlite://dir/a b.db",
		"sqlite:///no/such/dir/a.db?timeout=1m":        "sqlite:///no/such/dir/a.db",
		"etcd://a,b:1?prefix=x":                        "etcd://a,b:1",
		"etcds://h?insecure=true":                      "etcds://h",
	} {
		b, err := Open(Config{URL: url, SentinelPassword: "secret"})
		if assert.NoError(t, err, url) {
			assert.Equal(t, name, b.Name)
			assert.NotNil(t, b.Locker)
			assert.NoError(t, b.Close())
		}
	}
}

// Every mistake in a URL is an error, and no error contains the password or a part of it.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no certificate"), 0o600))
	for url, part := range map[string]string{
		"":                                     "must be a URL",
		"h:6379":                               "must be a URL",
		"://h":                                 "must be a URL",
		"red is://h":                           "must be a URL",
		"http://h":                             `unknown backend "http://"`,
		"redis://":                             "no host",
		"redis:///1":                           "no host",
		"redis://h:port":                       `"h:port" is not host:port`,
		"redis://h:0":                          `"h:0" is not host:port`,
		"redis://h:65536":                      `"h:65536" is not host:port`,
		"redis://h:":                           `"h:" is not host:port`,
		"redis://:6379":                        `":6379" is not host:port`,
		"redis://::1":                          `"::1" is not host:port`,
		"redis://a b":                          `"a b" is not host:port`,
		"redis://a,b":                          "more than one host",
		"redis://h/x":                          `"x" is not the number of a database`,
		"redis://h/1/2":                        `"1/2" is not the number of a database`,
		"redis://h?db=2":                       `unknown option "db"`,
		"redis://h?ca=x":                       `unknown option "ca"`,
		"redis://h?timeout=1":                  "timeout=1 is not a duration",
		"redis://h?timeout=0s":                 "timeout=0s is not a duration",
		"redis://h?timeout=1s&timeout=2s":      `option "timeout" is given more than once`,
		"redis://h#x":                          "cannot be parsed",
		"redis://h/%zz":                        "cannot be parsed",
		"redis://:%zz@h":                       "cannot be parsed",
		"rediss://h?ca=/none":                  "option ca: open /none",
		"rediss://h?ca=" + text:                "has no certificate",
		"rediss://h?cert=" + text:              "options cert and key",
		"rediss://h?insecure=1":                "insecure=1 is neither true nor false",
		"redis+sentinel://h":                   "no name of a master",
		"redis+sentinel://h/m/x":               "not the number of a database",
		"redis+cluster://a,b/1":                "a cluster has no databases",
		"memcache://h/1":                       "nothing may follow the hosts",
		"memcache://:secret@h":                 "memcached has no users and passwords",
		"postgres://h":                         "no database",
		"postgres://h/d?create=1":              "create=1 is neither true nor false",
		"postgres://h/d?sslmode=x":             "sslmode",
		"postgres://h/d?prefix=x":              `unknown option "prefix"`,
		"mysql://h":                            "no database",
		"mysql://a,b/d":                        "more than one host",
		"mysql://h/d?create=1":                 "create=1 is neither true nor false",
		"mysql://h/d?tls=1":                    "tls=1 is neither true nor false",
		"mysql://h/d?ca=x":                     `unknown option "ca"`,
		"sqlite://":                            "no file",
		"sqlite://:secret@h":                   "SQLite has no users and passwords",
		"sqlite://f.db?mode=memory":            `unknown option "mode"`,
		"etcd://h/1":                           "nothing may follow the hosts",
		"redis://:secret@":                     "no host",
		"redis://:secret@h?x=1":                `unknown option "x"`,
		"redis://u:s3c/secret@h":               "percent-encoded",
		"redis://u:s3c?secret@h":               "percent-encoded",
		"redis://u:s3c#secret@h":               "percent-encoded",
		"redis://u:s3c/secret?a=b@h:1/2?x=y":   "percent-encoded",
		"secret://secret:secret@secret/secret": "unknown backend",
	} {
		_, err := Open(Config{URL: url})
		if assert.Error(t, err, url) {
			assert.ErrorContains(t, err, part, url)
			assert.NotContains(t, strings.ReplaceAll(err.Error(), `"secret://"`, ""), "secret", url)
			assert.NotContains(t, err.Error(), "s3c", url)
			assert.NotContains(t, err.Error(), "\n")
		}
	}
	_, err := Open(Config{URL: "memcache://no-such-host.invalid"})
	require.ErrorAs(t, err, new(*UnavailableError))
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, name := range Schemes() {
		assert.Contains(t, Help(), name)
	}
}
