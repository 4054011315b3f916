package redisv9

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/window"
	"github.com/redis/go-redis/v9"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window, in one
// request. With windows of a minute, the counts of key are stored in the Redis key
// "!window:locker:60000:" followed by key. The value contains the number of the window by the
// server's clock. One SET writes the value and its expiry, at the end of the next window. If the
// server's clock is set back, the counts still count as those of the current window.
//
// If there is no reply, go-redis repeats the request. Regardless of MaxRetries only the first
// repetition counts, so n may count twice, but not more often.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	c, _, err := l.CountUnder(ctx, key, n, window.Rule{Per: per})
	return c, err
}

// CountUnder is Count if the rule allows n more, in one request, and otherwise changes nothing.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	a := &addend{Sending: redislock.NewSending(ctx, key), n: n}
	return l.locks.Count(a.Sending, key, r, func(counts string, args []string) (any, error) {
		send := func(name, script string) (any, error) {
			request := []any{name, script, 1, counts, a}
			for _, arg := range args {
				request = append(request, arg)
			}
			return l.do(a.Sending, request...)
		}
		reply, err := send("evalsha", redislock.Window.Hash)
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			reply, err = send("eval", redislock.Window.Text)
		}
		if err == nil && a.looks {
			err = errNoReplies
		}
		return reply, err
	})
}

// addend is the number to count in a request. Its Sending has the key in place of a token, and
// counts how often the request was sent. After two requests without an answer, the number may have
// been counted twice, so the next requests of go-redis only read. They still return the server's
// errors.
type addend struct {
	*redislock.Sending
	n     int64
	looks bool
}

var errNoReplies = errors.New("no reply to either of two requests")

// MarshalBinary implements [encoding.BinaryMarshaler].
func (a *addend) MarshalBinary() ([]byte, error) {
	if _, err := a.Sending.MarshalBinary(); err != nil {
		return nil, err
	}
	if a.looks = a.Sends() > 2; a.looks {
		return []byte{'0'}, nil
	}
	return strconv.AppendInt(nil, a.n, 10), nil
}
