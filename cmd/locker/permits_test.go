//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// Two commands hold the permits, and others are refused, or wait until one of the two has ended.
func TestPermits(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		args := func(more ...string) []string {
			return append([]string{"run", "-b", url, "--key", "imports", "--permits", "2"}, more...)
		}
		var ends []func() error
		seen := make(map[string]bool)
		for range 2 {
			p := prepare(t, []string{"LOCKER_PERMIT=7"}, args("sh", "-c", `echo "permit $LOCKER_PERMIT"; cat`)...)
			stdin, err := p.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, p.Start())
			p.prints(t, "permit ")
			p.prints(t, "\n")
			seen[strings.TrimSpace(p.stdout.String())] = true
			ends = append(ends, func() error {
				_ = stdin.Close()
				return p.Wait()
			})
		}
		require.Equal(t, map[string]bool{"permit 1": true, "permit 2": true}, seen)

		for _, how := range [][]string{{"--skip"}, {"--wait", "2s"}} {
			p := locked(t, statusHeld, nil, args(append(how, "echo", "ran")...)...)
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), `all 2 permits of "imports" are held; `)
			require.Empty(t, p.stdout.String())
		}

		file := filepath.Join(t.TempDir(), "ran")
		waiter := start(t, nil, args("touch", file)...)
		if strings.HasPrefix(url, "redis:") {
			require.Eventually(t, func() bool {
				out := locked(t, 0, nil, "ls", "-b", url, "--json", "imports/").stdout.String()
				return strings.Count(out, `"waiters":1}`) == 2
			}, 30*time.Second, 20*time.Millisecond, "each permit shows the command that waits")
		}
		require.NoError(t, ends[0]())
		require.Zero(t, waiter.status(t), &waiter.stderr)
		_, err := os.Stat(file)
		require.NoError(t, err)
		require.NoError(t, ends[1]())
		for range 2 {
			locked(t, 0, nil, args("--skip", "true")...)
		}
	})
}
