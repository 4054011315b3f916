package stampede

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// embedded is a miniredis behind a listener that counts what the fleet sends.
type embedded struct {
	redis    *miniredis.Miniredis
	listener net.Listener
	reads    atomic.Int64
}

func openEmbedded(context.Context, Address) (Server, Address, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, Address{}, err
	}
	s := &embedded{redis: miniredis.NewMiniRedis(), listener: listener}
	s.redis.ClockTTL(true) // or nothing ever expires
	// Dial, because it is what starts a miniredis without a listener of its own.
	unused, err := s.redis.Dial()
	if err != nil {
		listener.Close()
		return nil, Address{}, err
	}
	unused.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.redis.Server().ServeConn(&CountingConn{Conn: conn, Reads: &s.reads})
		}
	}()
	return s, Address{Scheme: "redis", Host: listener.Addr().String()}, nil
}

func (s *embedded) Expire(ctx context.Context, key string) error {
	key = Prefix + key
	if s.redis.Exists(key) {
		s.redis.SetTTL(key, time.Millisecond)
	}
	return Gone(ctx, func() (bool, error) { return s.redis.Exists(key), nil })
}

func (s *embedded) Requests(context.Context) (int64, error) { return s.reads.Load(), nil }

func (s *embedded) Close() {
	s.listener.Close()
	s.redis.Close()
}
