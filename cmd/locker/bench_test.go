//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestBench(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
		dir := t.TempDir()
		html, svg := filepath.Join(dir, "report.html"), filepath.Join(dir, "report.svg")
		bench := func(args ...string) *program {
			return locked(t, 0, nil, append([]string{"bench", "-b", url, "--goroutines", "6", "--keys", "2", "-d", "1s"}, args...)...)
		}
		out := bench("-o", html).stdout.String()
		require.Contains(t, out, url+", goroutines: 6, shared keys: 2\n")
		require.Regexp(t, `round trip +[1-9]\d* +[1-9]`, out)
		require.Regexp(t, `cycle +[1-9]\d* +[1-9]`, out)
		require.Regexp(t, `hand-off +[1-9]\d* +[1-9]`, out)
		require.NotContains(t, out, "\x1b", "only a terminal gets colors")

		p := bench("-o", svg, "--json")
		require.Empty(t, p.stderr.String(), "only a terminal gets a progress bar")
		require.Equal(t, 3, strings.Count(p.stdout.String(), "\n"))
		for line := range strings.Lines(p.stdout.String()) {
			var r row
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			require.Positive(t, r.Count)
			require.Positive(t, r.PerSecond)
			require.Positive(t, r.P50)
			require.LessOrEqual(t, r.P50, r.P90)
			require.LessOrEqual(t, r.P90, r.P99)
			require.LessOrEqual(t, r.P99, r.Max)
		}
		page, err := os.ReadFile(html)
		require.NoError(t, err)
		require.Contains(t, string(page), "<td>hand-off</td>")
		require.Contains(t, string(page), "<svg ")
		require.NotContains(t, string(page), "<?xml")
		picture, err := os.ReadFile(svg)
		require.NoError(t, err)
		require.Contains(t, string(picture), "hand-off")
		requireOneLine(t, locked(t, statusFailed, nil, "bench", "-b", url, "-d", "100ms", "-o", filepath.Join(dir, "none", "x.svg")))

		srv.Stop()
		requireOneLine(t, locked(t, statusUnavailable, nil, "bench", "-b", url))
	})
}

// A backend for which the time is too short is measured all the same.
func TestBenchOfSlowBackend(t *testing.T) {
	t.Parallel()
	m := &measurement{
		backend: &backend.Backend{Locker: memory.New()}, flags: benchFlags{goroutines: 4, keys: 2}, tick: func() {},
	}
	results, err := m.measure(t.Context())
	require.NoError(t, err)
	var counts []int64
	for _, r := range results {
		counts = append(counts, r.Counts.TotalCount())
	}
	require.Equal(t, []int64{1, 4, 2}, counts)
}

// A bench that is interrupted, or whose server dies, ends at once; the former leaves no lock behind.
func TestBenchEnds(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = client.Close() })
	running := func() *program {
		p := start(t, nil, "bench", "-b", "redis://"+srv.Addr, "-d", "6s") // its last part takes a third
		require.Eventually(t, func() bool { return len(client.Keys(t.Context(), "locker:bench/*/shared/*").Val()) > 0 },
			long, time.Millisecond)
		return p
	}
	p := running()
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, p.status(t))
	require.Empty(t, client.Keys(t.Context(), "locker:bench/*").Val())
	require.Empty(t, p.stdout.String()+p.stderr.String())

	p = running()
	srv.Stop()
	require.Equal(t, statusUnavailable, p.status(t))
	requireOneLine(t, p)
}
