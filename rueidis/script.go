package rueidis

import (
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/rueidis"
)

// set and setGet take a lock if it is free; see [redislock.Requests].
func (l *Locker) set(s *redislock.Sending, lock string, ms int64) (wasFree bool, err error) {
	reply, err := l.do(s, l.command([]string{"SET"}, []string{lock}, s.Token, "PX", strconv.FormatInt(ms, 10), "NX"))
	return err == nil && reply != nil, err
}

func (l *Locker) setGet(s *redislock.Sending, lock string, ms int64) (holder string, wasFree bool, err error) {
	reply, err := l.do(s, l.command([]string{"SET"}, []string{lock},
		s.Token, "PX", strconv.FormatInt(ms, 10), "NX", "GET"))
	holder, isHeld := reply.(string)
	return holder, err == nil && !isHeld, err
}

// eval runs a script.
func (l *Locker) eval(s *redislock.Sending, e redislock.Eval) (any, error) {
	name, script := "EVALSHA", e.Hash
	if e.IsNew {
		name, script = "EVAL", e.Text
	}
	keys := []string{e.Key1, e.Key2}
	switch {
	case e.Keys != nil:
		keys = append(keys[:1], e.Keys...)
	case e.Key2 == "":
		keys = keys[:1]
	}
	args := append(make([]string, 0, 4), s.Token)
	if e.TTL > 0 {
		args = append(args, strconv.FormatInt(e.TTL, 10))
	}
	args = append(args, e.More...)
	reply, err := l.do(s, l.command([]string{name, script, strconv.Itoa(len(keys))}, keys, args...))
	return reply, l.closed(err)
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
