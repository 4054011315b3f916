package rueidis

import (
	"context"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/window"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window, in one
// request. Packages rueidis and redisv9 share their counts. rueidis does not repeat the request.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	c, _, err := l.CountUnder(ctx, key, n, window.Rule{Per: per})
	return c, err
}

// CountUnder is Count if the rule allows n more, in one request, and otherwise changes nothing.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	s := redislock.NewSending(ctx, key)
	return l.locks.Count(s, key, r, func(counts string, args []string) (any, error) {
		args = append([]string{strconv.FormatInt(n, 10)}, args...)
		send := func(name, script string) (any, error) {
			return l.do(s, l.command([]string{name, script, "1"}, []string{counts}, args...))
		}
		reply, err := send("EVALSHA", redislock.Window.Hash)
		if err != nil && isReply(err, "NOSCRIPT") {
			reply, err = send("EVAL", redislock.Window.Text)
		}
		return reply, l.closed(err)
	})
}
