package redisv9

import (
	"errors"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// run runs a script on a lock, with s as its first argument. While a Cluster moves the lock's slot
// to another node, the lock and the queue may be on different nodes. The script is then run on the
// lock alone.
func (l *Locker) run(script redislock.Script, keys redislock.Keys, s *redislock.Sending, args ...any) (any, error) {
	reply, err := l.eval(script, keys.Lock, keys.Queue, s, args...)
	if err != nil && keys.Queue != "" && redis.HasErrorPrefix(err, "TRYAGAIN") {
		reply, err = l.eval(script, keys.Lock, "", s, args...)
	}
	return reply, err
}

// eval runs a script on one key, or two if key2 is not empty. A server that does not have the
// script is sent its text.
func (l *Locker) eval(script redislock.Script, key1, key2 string, s *redislock.Sending, args ...any) (any, error) {
	request := make([]any, 0, 6+len(args))
	request = append(request, "evalsha", script.Hash)
	if key2 == "" {
		request = append(request, 1, key1)
	} else {
		request = append(request, 2, key1, key2)
	}
	request = append(append(request, s), args...)
	start := time.Now()
	reply, err := l.do(s, request...)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		request[0], request[1] = "eval", script.Text
		start = time.Now()
		reply, err = l.do(s, request...)
	}
	if err == nil {
		l.waiters.RoundTrip.Add(time.Since(start))
	} else if foreign := redislock.ForeignReply(err.Error()); foreign != nil {
		return nil, foreign
	} else if errors.Is(err, redis.ErrClosed) {
		err = closedError{err}
	}
	return reply, err
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
