package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is a server that we started; nil is one that was there.
type process struct {
	cmd   *exec.Cmd
	dir   string
	ended chan struct{} // closed when the process has ended
}

// startPatience is how long a server may take to start on a busy machine.
const startPatience = time.Minute

var errEnded = errors.New("it has ended")

// launch starts a server. ask returns an error until the server answers. If it ends before, most
// likely because its port was taken, the error is errEnded. After an error nothing is left running.
func launch(ctx context.Context, cmd *exec.Cmd, dir string, ask func() error) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, dir, make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	for end := time.Now().Add(startPatience); ; {
		err := ask()
		if err == nil {
			return p, nil
		}
		select {
		case <-p.ended:
			return nil, errEnded
		case <-ctx.Done():
			p.kill()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			p.kill()
			return nil, err
		}
	}
}

// startServer runs a program until close, and returns the address that it listens on.
func startServer(ctx context.Context, program string, args func(port string) []string) (*process, string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, "", fmt.Errorf("%s is not installed, and no -%s says where one runs",
			program, strings.TrimSuffix(program, "-server"))
	}
	dir, err := os.MkdirTemp("", "locker-benchmark-")
	if err != nil {
		return nil, "", err
	}
	for range 5 { // the port may be taken between the look and the use
		var port string
		if port, err = freePort(); err != nil {
			break
		}
		addr := net.JoinHostPort("127.0.0.1", port)
		cmd := exec.Command(path, args(port)...)
		cmd.Dir = dir
		var p *process
		p, err = launch(ctx, cmd, dir, func() error {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if err == nil {
			return p, addr, nil
		}
		if !errors.Is(err, errEnded) {
			break
		}
	}
	os.RemoveAll(dir)
	return nil, "", fmt.Errorf("%s does not start: %w", program, err)
}

// freePort returns a port on which no process listens at the moment.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) close() {
	if p == nil {
		return
	}
	p.kill()
	os.RemoveAll(p.dir)
}

// redisServer is the parent's view of the Redis under test.
type redisServer struct {
	addr    string
	version string
	client  *redis.Client
	process *process
}

func openRedis(ctx context.Context, addr string) (*redisServer, error) {
	s := &redisServer{addr: addr}
	if addr == "" {
		var err error
		s.process, s.addr, err = startServer(ctx, "redis-server", func(port string) []string {
			return []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"}
		})
		if err != nil {
			return nil, err
		}
	} else if err := checkAddress(addr); err != nil {
		return nil, fmt.Errorf("-redis %q: %w", addr, err)
	}
	s.client = redis.NewClient(&redis.Options{
		Addr: s.addr, PoolSize: 1, MaxRetries: -1, DialTimeout: patience, ReadTimeout: patience,
		DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := s.client.Info(ctx, "server").Result()
	if err != nil {
		s.close()
		return nil, fmt.Errorf("no Redis server at %s: %w", s.addr, err)
	}
	s.version = field(info, "redis_version:")
	return s, nil
}

func (s *redisServer) close() {
	s.client.Close()
	s.process.close()
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
	process *process
	asked   int64
}

func openMemcached(ctx context.Context, addr string) (*memcachedServer, error) {
	s := &memcachedServer{addr: addr}
	if addr == "" {
		var err error
		s.process, s.addr, err = startServer(ctx, "memcached", func(port string) []string {
			args := []string{"-l", "127.0.0.1", "-p", port, "-U", "0"}
			if os.Getuid() == 0 {
				args = append(args, "-u", "root") // or it refuses to start
			}
			return args
		})
		if err != nil {
			return nil, err
		}
	} else if err := checkAddress(addr); err != nil {
		return nil, fmt.Errorf("-memcached %q: %w", addr, err)
	}
	stats, err := s.stats(ctx)
	if err != nil {
		s.process.close()
		return nil, fmt.Errorf("no memcached at %s: %w", s.addr, err)
	}
	s.version = field(stats, "STAT version ")
	return s, nil
}

func (s *memcachedServer) close() { s.process.close() }

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
		if !strings.HasPrefix(line, "STAT ") {
			return "", errors.New("it does not talk like a memcached")
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

func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New("it is not host:port")
	}
	return nil
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
