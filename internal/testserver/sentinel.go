package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// RedisSentinel starts a Sentinel that decides alone. It watches the master at an address, by the
// name "m", and starts a failover when it has not answered for that long.
func RedisSentinel(tb testing.TB, master string, down time.Duration) *Server {
	tb.Helper()
	k := redisKind
	config := func(s *Server) string { return filepath.Join(s.dir, "sentinel.conf") }
	k.prepare = func(s *Server) error {
		host, port, err := net.SplitHostPort(master)
		if err != nil {
			return err
		}
		return os.WriteFile(config(s), fmt.Appendf(nil, `
sentinel monitor m %s %s 1
sentinel down-after-milliseconds m %d
sentinel failover-timeout m 10000
`, host, port, down.Milliseconds()), 0o600)
	}
	k.args = func(s *Server) []string {
		return []string{config(s), "--sentinel", "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir}
	}
	return start(tb, k, nil)
}
