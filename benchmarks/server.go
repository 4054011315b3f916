package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// host is what package testserver takes for a test. Its servers run until close.
type host struct {
	testing.TB // for the methods that testserver does not use
	ends       []func()
}

func (*host) Helper()                           {}
func (h *host) Cleanup(f func())                { h.ends = append(h.ends, f) }
func (*host) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (*host) Skipf(format string, args ...any)  { panic(notStarted{fmt.Errorf(format, args...)}) }
func (*host) Fatalf(format string, args ...any) { panic(notStarted{fmt.Errorf(format, args...)}) }

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "locker-benchmark-")
	if err != nil {
		h.Fatalf("%w", err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

type notStarted struct{ error }

// start starts a server with more arguments and returns its address.
func (h *host) start(server func(testing.TB, ...string) *testserver.Server, args ...string) (addr string, err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case notStarted:
			err = fmt.Errorf("%w: %w", errSetUp, e.error)
		default:
			panic(e)
		}
	}()
	return server(h, args...).Addr, nil
}

func (h *host) close() {
	for _, end := range slices.Backward(h.ends) {
		end()
	}
	h.ends = nil
}

// redisServer is the parent's view of the Redis under test.
type redisServer struct {
	addr    string
	version string
	client  *redis.Client
}

func openRedis(ctx context.Context, h *host) (*redisServer, error) {
	s := &redisServer{}
	var err error
	if s.addr, err = h.start(testserver.Redis); err != nil {
		return nil, err
	}
	s.client = redis.NewClient(&redis.Options{
		Addr: s.addr, PoolSize: 1, MaxRetries: -1, DialTimeout: patience, ReadTimeout: patience,
		DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := s.client.Info(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	h.Cleanup(func() { s.client.Close() })
	s.version = field(info, "redis_version:")
	return s, nil
}

// usage counts reads from clients, a pipeline as one. This query is one of them.
func (s *redisServer) usage(ctx context.Context) (u usage, err error) {
	info, err := s.client.Info(ctx).Result()
	if err != nil {
		return u, err
	}
	if u.requests, err = strconv.ParseInt(field(info, "total_reads_processed:"), 10, 64); err != nil {
		return u, err
	}
	u.cpu, err = seconds(info, "used_cpu_user:", "used_cpu_sys:")
	return u, err
}

func (s *redisServer) requests(ctx context.Context) (int64, error) {
	u, err := s.usage(ctx)
	return u.requests, err
}

// seconds sums fields of a text that are seconds.
func seconds(text string, names ...string) (sum time.Duration, err error) {
	for _, name := range names {
		s, err := strconv.ParseFloat(field(text, name), 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(s * float64(time.Second))
	}
	return sum, nil
}

type memcachedServer struct {
	addr    string
	version string
	asked   int64
}

func openMemcached(ctx context.Context, h *host) (*memcachedServer, error) {
	s := &memcachedServer{}
	var err error
	if s.addr, err = h.start(testserver.Memcached); err != nil {
		return nil, err
	}
	stats, err := s.stats(ctx)
	if err != nil {
		return nil, err
	}
	s.version = field(stats, "STAT version ")
	return s, nil
}

func (s *memcachedServer) stats(ctx context.Context) (string, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return "", err
	}
	var stats strings.Builder
	r := bufio.NewReader(io.LimitReader(conn, 1<<20))
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == "END\r\n" {
			return stats.String(), nil
		}
		stats.WriteString(line)
	}
}

// usage counts commands, including this query, since the server does not count reads.
func (s *memcachedServer) usage(ctx context.Context) (u usage, err error) {
	stats, err := s.stats(ctx)
	if err != nil {
		return u, err
	}
	for _, name := range []string{"cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses"} {
		n, err := strconv.ParseInt(field(stats, "STAT "+name+" "), 10, 64)
		if err != nil {
			return u, err
		}
		u.requests += n
	}
	s.asked++
	u.requests += s.asked
	u.cpu, err = seconds(stats, "STAT rusage_user ", "STAT rusage_system ")
	return u, err
}

// field finds the line of text that begins with name and returns what follows it.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
