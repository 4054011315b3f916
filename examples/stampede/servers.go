package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
)

var errNoServer = errors.New("the server does not answer")

// server is the parent's side of the cache server.
type server interface {
	// expire lets a key's time run out and returns once the key is gone.
	expire(ctx context.Context, key string) error
	// requests is how many requests of the fleet it has served. Only differences mean something.
	requests(ctx context.Context) (int64, error)
	close()
}

// openServer connects to the server at a, or starts the embedded one, and returns where the fleet
// finds it.
func openServer(ctx context.Context, a *address) (server, address, error) {
	if a == nil {
		s, err := startEmbedded()
		if err != nil {
			return nil, address{}, err
		}
		return s, address{Scheme: "redis", Host: s.listener.Addr().String()}, nil
	}
	var s server
	var err error
	switch a.Scheme {
	case "postgres":
		s, fleet, err := openPostgres(ctx, *a)
		if err != nil {
			// pgx reports each of its attempts on a line.
			return nil, address{}, fmt.Errorf("%w: %s: %s", errNoServer, a, strings.Join(strings.Fields(err.Error()), " "))
		}
		return s, fleet, nil
	case "etcd":
		if s, err := openEtcd(ctx, a.Host); err != nil {
			return nil, address{}, fmt.Errorf("%w: %s: %w", errNoServer, a, err)
		} else {
			return s, *a, nil
		}
	case "memcache":
		client := gomemcache.New(a.Host)
		client.Timeout = patience
		s, err = &memcachedServer{client, a.Host}, client.Ping()
	default:
		client := redis.NewClient(&redis.Options{Addr: a.Host, MaxRetries: -1, DialTimeout: patience})
		s, err = &redisServer{client: client}, client.Ping(ctx).Err()
	}
	if err != nil {
		s.close()
		return nil, address{}, fmt.Errorf("%w: %s: %w", errNoServer, a, err)
	}
	return s, *a, nil
}

// gone waits until exists is false.
func gone(ctx context.Context, exists func() (bool, error)) error {
	for {
		if there, err := exists(); err != nil || !there {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type redisServer struct {
	client *redis.Client
	asked  int64
}

func (s *redisServer) expire(ctx context.Context, key string) error {
	if err := s.client.PExpire(ctx, key, time.Millisecond).Err(); err != nil {
		return err
	}
	return gone(ctx, func() (bool, error) {
		n, err := s.client.Exists(ctx, key).Result()
		return n > 0, err
	})
}

// requests counts the reads from clients, in which a pipeline is one, less those that asked for it.
func (s *redisServer) requests(ctx context.Context) (int64, error) {
	info, err := s.client.Info(ctx, "stats").Result()
	if err != nil {
		return 0, err
	}
	s.asked++
	reads, err := number(info, "total_reads_processed:")
	return reads - s.asked, err
}

func (s *redisServer) close() { s.client.Close() }

type memcachedServer struct {
	client *gomemcache.Client
	host   string
}

func (s *memcachedServer) expire(ctx context.Context, key string) error {
	if err := s.client.Touch(key, -1); err != nil && !errors.Is(err, gomemcache.ErrCacheMiss) {
		return err
	}
	return gone(ctx, func() (bool, error) {
		_, err := s.client.Get(key)
		if errors.Is(err, gomemcache.ErrCacheMiss) {
			return false, nil
		}
		return true, err
	})
}

// requests sums up the commands: memcached does not count reads.
func (s *memcachedServer) requests(ctx context.Context) (int64, error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", s.host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return 0, err
	}
	var stats strings.Builder
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line == "END\r\n" {
			break
		}
		stats.WriteString(line)
	}
	var sum int64
	for _, name := range []string{"cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses"} {
		n, err := number(stats.String(), "STAT "+name+" ")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (s *memcachedServer) close() { s.client.Close() }

// number finds the line of text that begins with name and returns the number after it.
func number(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("the server does not tell its %s", strings.Trim(name, " :"))
}

// embedded is a miniredis behind a listener that counts what the fleet sends.
type embedded struct {
	redis    *miniredis.Miniredis
	listener net.Listener
	reads    atomic.Int64
}

func startEmbedded() (*embedded, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &embedded{redis: miniredis.NewMiniRedis(), listener: listener}
	s.redis.ClockTTL(true) // or nothing ever expires
	// Dial, because it is what starts a miniredis without a listener of its own.
	unused, err := s.redis.Dial()
	if err != nil {
		listener.Close()
		return nil, err
	}
	unused.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.redis.Server().ServeConn(&countingConn{conn, &s.reads})
		}
	}()
	return s, nil
}

func (s *embedded) expire(ctx context.Context, key string) error {
	if s.redis.Exists(key) {
		s.redis.SetTTL(key, time.Millisecond)
	}
	return gone(ctx, func() (bool, error) { return s.redis.Exists(key), nil })
}

func (s *embedded) requests(context.Context) (int64, error) { return s.reads.Load(), nil }

func (s *embedded) close() {
	s.listener.Close()
	s.redis.Close()
}

type countingConn struct {
	net.Conn
	reads *atomic.Int64
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.reads.Add(1)
	}
	return n, err
}
