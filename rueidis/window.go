package rueidis

import (
	"context"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/window"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the present window, for a Limiter of package window, in one
// request. The counts are those of package redisv9, and rueidis does not repeat the request.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	c, _, err := l.CountUnder(ctx, key, n, window.Rule{Per: per})
	return c, err
}

// CountUnder is Count if the rule allows n more, in one request, and otherwise changes nothing.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	s := redislock.NewSending(ctx, key)
	reply, err := redislock.Call(&l.waiters.Caller, s, func() (redislock.WindowReply, error) {
		return redislock.ParseWindow(l.count(s, l.names.WindowKey(key, r.Per), n, redislock.WindowArgs(r)))
	})
	return reply.Counts, reply.Counted, err
}

func (l *Locker) count(s *redislock.Sending, key string, n int64, args []any) (any, error) {
	added := strconv.FormatInt(n, 10)
	reply, err := l.do(s, l.script("EVALSHA", redislock.Window.Hash, key, "", added, args))
	if err != nil && isReply(err, "NOSCRIPT") {
		reply, err = l.do(s, l.script("EVAL", redislock.Window.Text, key, "", added, args))
	}
	return reply, l.closed(err)
}
