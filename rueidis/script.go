package rueidis

import (
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/rueidis"
)

// run runs a script on a lock, with s as its first argument. While a Cluster moves the lock's slot
// to another node, the lock and the queue may be on different nodes. The script is then run on the
// lock alone.
func (l *Locker) run(script redislock.Script, keys redislock.Keys, s *redislock.Sending, args ...any) (any, error) {
	reply, err := l.eval(script, keys.Lock, keys.Queue, s, args...)
	if err != nil && keys.Queue != "" && isReply(err, "TRYAGAIN") {
		reply, err = l.eval(script, keys.Lock, "", s, args...)
	}
	return reply, err
}

// eval runs a script on one key, or two if key2 is not empty. A server that does not have the
// script is sent its text.
func (l *Locker) eval(script redislock.Script, key1, key2 string, s *redislock.Sending, args ...any) (any, error) {
	start := time.Now()
	reply, err := l.do(s, l.script("EVALSHA", script.Hash, key1, key2, s.Token, args))
	if err != nil && isReply(err, "NOSCRIPT") {
		start = time.Now()
		reply, err = l.do(s, l.script("EVAL", script.Text, key1, key2, s.Token, args))
	}
	if err == nil {
		l.waiters.RoundTrip.Add(time.Since(start))
	} else if foreign := redislock.ForeignReply(err.Error()); foreign != nil {
		return nil, foreign
	}
	return reply, l.closed(err)
}

// script builds a command that runs a script.
func (l *Locker) script(name, script, key1, key2, token string, args []any) rueidis.Completed {
	after := make([]string, 1, 4)
	after[0] = token
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			after = append(after, arg)
		case int64:
			after = append(after, strconv.FormatInt(arg, 10))
		default:
			panic(fmt.Sprintf("an argument of type %T", arg))
		}
	}
	if key2 == "" {
		return l.command([]string{name, script, "1"}, []string{key1}, after...)
	}
	return l.command([]string{name, script, "2"}, []string{key1, key2}, after...)
}

// command builds a command. It is not marked as read-only, not even if it is: rueidis then does not
// repeat it, and no replica answers it.
//
// rueidis spreads commands whose keys it knows over several connections to a server. On a Cluster
// it has to know them. Elsewhere all of a Locker's commands go on one connection, so that more of
// them travel together.
func (l *Locker) command(before, keys []string, after ...string) rueidis.Completed {
	c := l.client.B().Arbitrary(before...)
	if l.alone {
		c = c.Args(keys...)
	} else {
		c = c.Keys(keys...)
	}
	return c.Args(after...).Build()
}

// do sends a command that has s's token as an argument, and returns the reply: a string, an int64,
// a list, or nil. s counts how often it may have been executed.
func (l *Locker) do(s *redislock.Sending, c rueidis.Completed) (any, error) {
	return l.doOn(l.client, s, c)
}

// doOn is do with another client, for one node of a Cluster.
func (l *Locker) doOn(client rueidis.Client, s *redislock.Sending, c rueidis.Completed) (any, error) {
	for start := time.Now(); ; {
		ctx := l.deadlines.context(s.Ctx)
		var reply any
		err := s.Once(func() (err error) {
			reply, err = client.Do(ctx, c).ToAny()
			if rueidis.IsRedisNil(err) {
				err = nil
			}
			return err
		})
		switch {
		case err == nil, s.Ctx.Err() != nil:
		case isOfOthers(err) && ctx.isUp():
			err = errNoReply
		case isOfOthers(err):
			s.Undo()
			if time.Since(start) < againFor {
				continue
			}
			err = fmt.Errorf("another call has given up the connection: %v", err)
		case isDial(err):
			s.Undo()
		}
		return reply, err
	}
}
