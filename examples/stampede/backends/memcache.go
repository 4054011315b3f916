package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	client "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/memcache"
)

func connectMemcached(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	c := client.New(a.Host)
	c.Timeout, c.MaxIdleConns = stampede.Patience, 20
	cache := memcache.NewCache(c, memcache.CacheConfig[string]{TTL: stampede.FreshFor, Prefix: stampede.Prefix})
	return cache, memcache.New(c), nil
}

func openMemcached(_ context.Context, a stampede.Address) (stampede.Server, stampede.Address, error) {
	c := client.New(a.Host)
	c.Timeout = stampede.Patience
	if err := c.Ping(); err != nil {
		c.Close()
		return nil, a, err
	}
	return &memcachedServer{c, a.Host}, a, nil
}

type memcachedServer struct {
	client *client.Client
	host   string
}

func (s *memcachedServer) Expire(ctx context.Context, key string) error {
	key = stampede.Prefix + key
	if err := s.client.Touch(key, -1); err != nil && !errors.Is(err, client.ErrCacheMiss) {
		return err
	}
	return stampede.Gone(ctx, func() (bool, error) {
		_, err := s.client.Get(key)
		if errors.Is(err, client.ErrCacheMiss) {
			return false, nil
		}
		return true, err
	})
}

// Requests sums up the commands: memcached does not count reads.
func (s *memcachedServer) Requests(ctx context.Context) (int64, error) {
	conn, err := (&net.Dialer{Timeout: stampede.Patience}).DialContext(ctx, "tcp", s.host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(stampede.Patience)); err != nil {
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
		n, err := stampede.Number(stats.String(), "STAT "+name+" ")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (s *memcachedServer) Close() { s.client.Close() }
