package redisv9

import (
	"errors"
	"fmt"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// set and setGet take a lock if it is free; see [redislock.Requests].
func (l *Locker) set(s *redislock.Sending, lock string, ms int64) (wasFree bool, err error) {
	cmd := redis.NewBoolCmd(s.Ctx, "set", lock, s, "px", ms, "nx") // it takes a nil reply without an error
	err = l.process(s, cmd)
	return err == nil && cmd.Val(), err
}

func (l *Locker) setGet(s *redislock.Sending, lock string, ms int64) (holder string, wasFree bool, err error) {
	before := s.Sends()
	reply, err := l.do(s, "set", lock, s, "px", ms, "nx", "get")
	if errors.Is(err, redis.Nil) && s.Sends() > before {
		return "", true, nil
	}
	holder, isText := reply.(string)
	if err == nil && !isText {
		err = fmt.Errorf("unexpected reply to SET with GET: %v", reply)
	}
	return holder, false, err
}

// eval runs a script.
func (l *Locker) eval(s *redislock.Sending, e redislock.Eval) (reply any, err error) {
	reply, err = l.do(s, arguments(s, e)...)
	if errors.Is(err, redis.ErrClosed) {
		err = closedError{err}
	}
	return reply, err
}

// arguments returns the command that runs a script.
func arguments(s *redislock.Sending, e redislock.Eval) []any {
	size := 6 + len(e.Keys) + len(e.More)
	if e.TTL > 0 {
		size++
	}
	request := make([]any, 0, size)
	if e.IsNew {
		request = append(request, "eval", e.Text)
	} else {
		request = append(request, "evalsha", e.Hash)
	}
	switch {
	case e.Keys != nil:
		request = append(request, 1+len(e.Keys), e.Key1)
		for _, key := range e.Keys {
			request = append(request, key)
		}
	case e.Key2 == "":
		request = append(request, 1, e.Key1)
	default:
		request = append(request, 2, e.Key1, e.Key2)
	}
	request = append(request, s)
	if e.TTL > 0 {
		request = append(request, e.TTL)
	}
	for _, arg := range e.More {
		request = append(request, arg)
	}
	return request
}

// do runs a command that has s as an argument, and returns its reply.
func (l *Locker) do(s *redislock.Sending, request ...any) (any, error) {
	cmd := redis.NewCmd(s.Ctx, request...)
	if err := l.process(s, cmd); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// process runs a command that has s as an argument. s counts how often it may have been executed.
// If there is an error, the command may still be under way, and must be left alone.
func (l *Locker) process(s *redislock.Sending, cmd redis.Cmder) error {
	if l.batches != nil {
		return l.batches.process(s, cmd)
	}
	return l.sendAlone(s, cmd)
}

// sendAlone sends a command as a request of its own.
func (l *Locker) sendAlone(s *redislock.Sending, cmd redis.Cmder) error {
	s.Begin(cmd, l.runsOnConnect)
	err := l.client.Process(s.Ctx, cmd)
	s.End()
	return err
}
