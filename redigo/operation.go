package redigo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/gomodule/redigo/redis"
)

// ioTimeout is how long a reply may take.
const ioTimeout = 3 * time.Second

// operation is the work of one call on one lock, over one connection.
type operation struct {
	l    *Locker
	ctx  context.Context
	conn redis.Conn
	key  string // on the server

	// near means that the caller leaves this operation behind when ctx ends, so the reply may take
	// its time. Otherwise the caller waits for it, and the reply must come before ctx's deadline.
	near bool

	sent     int64 // when the last request was sent, by the clock's now
	watching bool  // the connection has a WATCH
	waiting  bool  // the connection owes a reply
}

// operate runs call over a connection from the pool.
func operate[T any](ctx context.Context, l *Locker, key, token string,
	call func(*operation) (T, error)) (T, error) {
	deadline, near := ctx.Deadline()
	near = near && time.Until(deadline) < ioTimeout
	timeout := time.Duration(0) // run inline: the operation honors ctx
	if near {
		timeout = math.MaxInt64
	}
	return inflight.Do(ctx, &l.calls, token, timeout, func() (T, error) {
		var zero T
		conn, err := l.borrow(ctx)
		if err != nil {
			return zero, err
		}
		o := &operation{l: l, ctx: ctx, conn: conn, key: l.prefix + key, near: near}
		defer o.end()
		return call(o)
	})
}

// ended returns ctx's error, even if its deadline has just passed and its timer has not fired yet.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// borrow gets a connection from the pool. It returns when ctx ends, even if the pool's functions do
// not.
//
// That takes a goroutine, which costs half as much as a request on loopback. So borrow does without
// when the pool will most likely not call them: it has an idle connection for each call that is
// here at the same time, and no connection is tested. If the pool has to dial all the same, because
// other code takes a connection at that moment or one has reached MaxConnLifetime, borrow returns
// when the Dial function does.
func (l *Locker) borrow(ctx context.Context) (redis.Conn, error) {
	p := l.pool
	if p == nil {
		return nil, errNilPool
	}
	takers := l.takers.Add(1)
	defer l.takers.Add(-1)
	untested := p.TestOnBorrow == nil && p.TestOnBorrowContext == nil
	fresh := p.IdleTimeout == 0 || time.Since(l.start)-time.Duration(l.used.Load()) < p.IdleTimeout/2
	if untested && fresh && int64(p.IdleCount()) >= takers {
		return usable(connect(ctx, p))
	}
	return dialed(ctx, func(ctx context.Context) (redis.Conn, error) { return connect(ctx, p) })
}

// connect gets a connection from the pool. A pool with Wait that is closed while a caller waits for a
// connection panics, if that caller's context has ended: it gives back a turn through a channel that
// is closed. That would end the process of a caller that has left already.
func connect(ctx context.Context, p *redis.Pool) (conn redis.Conn, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case runtime.Error:
			if v.Error() != "send on closed channel" {
				panic(v)
			}
			err = errors.New("redigo: get on closed pool")
		default:
			panic(v)
		}
	}()
	return p.GetContext(ctx)
}

// dialed returns what get returns or, when ctx ends before that, ctx's error. A connection that
// comes later is closed.
func dialed(ctx context.Context, get func(context.Context) (redis.Conn, error)) (redis.Conn, error) {
	if ctx.Done() == nil {
		return usable(get(ctx))
	}
	var conn redis.Conn
	call := inflight.Go(func() (_ redis.Conn, err error) {
		conn, err = usable(get(ctx))
		return conn, err
	})
	select {
	case <-call.Done():
	case <-ctx.Done():
		left := call.Leave(func() {
			if conn != nil {
				conn.Close()
			}
		})
		if left {
			return nil, ctx.Err()
		}
	}
	return call.Result()
}

// usable returns an error for a connection without timeouts, before anything is sent over it.
func usable(conn redis.Conn, err error) (redis.Conn, error) {
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, errors.New("redigo: the pool's Dial function returned no connection")
	}
	if _, err := redis.DoWithTimeout(conn, ioTimeout, ""); err != nil { // sends nothing
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// end returns the connection to the pool. If it has a WATCH or owes a reply, Close would send
// UNWATCH and wait for all replies, without a bound, so end breaks the connection first.
func (o *operation) end() {
	if o.watching || o.waiting {
		for o.conn.Err() == nil {
			// A read whose time is over takes what was received already, and then fails for good.
			receive(o.conn, time.Nanosecond)
		}
	}
	o.conn.Close()
	o.l.used.Store(int64(time.Since(o.l.start)))
}

func receive(conn redis.Conn, timeout time.Duration) {
	defer func() { _ = recover() }()
	_, _ = redis.ReceiveWithTimeout(conn, timeout)
}

// command is a command's name and its arguments.
type command []any

// refusal is an error that the server replied to a command.
type refusal struct {
	command string
	cause   redis.Error
}

func (r *refusal) Error() string { return r.command + ": " + r.cause.Error() }

func (r *refusal) Unwrap() error { return r.cause }

func refuse(command string, cause redis.Error) error {
	err := &refusal{command, cause}
	switch {
	case strings.HasPrefix(string(cause), "WRONGTYPE"):
		return fmt.Errorf("%w: %w", errForeign, err)
	case command == "TIME":
		return fmt.Errorf("the server does not tell its time; use WithClientClock: %w", err)
	}
	return err
}

// do sends commands in one write and returns their replies, or the first that is an error.
func (o *operation) do(commands ...command) ([]any, error) {
	if err := ended(o.ctx); err != nil {
		return nil, err
	}
	o.sent = o.l.clock.now()
	o.waiting = true
	for _, c := range commands {
		if c[0] == "WATCH" {
			o.watching = true
		}
		if err := o.conn.Send(c[0].(string), c[1:]...); err != nil {
			return nil, err
		}
	}
	timeout := ioTimeout
	if deadline, ok := o.ctx.Deadline(); ok && !o.near {
		timeout = max(min(timeout, time.Until(deadline)), time.Nanosecond)
	}
	replies, err := replies(o.conn, timeout)
	if err != nil {
		return nil, err
	}
	o.waiting = false
	if len(replies) != len(commands) {
		return nil, fmt.Errorf("redigo: %d replies to %d commands", len(replies), len(commands))
	}
	last := len(commands) - 1
	if commands[last][0] == "EXEC" {
		cause, failed := replies[last].(redis.Error)
		if !failed || strings.HasPrefix(string(cause), "EXECABORT") {
			o.watching = false
		}
	}
	for i, c := range commands {
		if cause, ok := replies[i].(redis.Error); ok {
			return nil, refuse(c[0].(string), cause)
		}
	}
	return replies, nil
}

// replies receives all replies that the connection owes. redigo panics on some that no Redis sends.
func replies(conn redis.Conn, timeout time.Duration) (r []any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redigo panicked: %v", p)
		}
	}()
	return redis.Values(redis.DoWithTimeout(conn, timeout, ""))
}

// multi carries out commands as a transaction. It returns no results if a watched key had changed,
// and the server carried out nothing.
func (o *operation) multi(commands ...command) (results []any, err error) {
	all := make([]command, 0, len(commands)+2)
	all = append(append(append(all, command{"MULTI"}), commands...), command{"EXEC"})
	replies, err := o.do(all...)
	if err != nil {
		return nil, err
	}
	switch r := replies[len(all)-1].(type) {
	case nil:
		return nil, nil
	case []any:
		if len(r) != len(commands) {
			return nil, fmt.Errorf("EXEC: %d results of %d commands", len(r), len(commands))
		}
		for i, c := range commands {
			if cause, ok := r[i].(redis.Error); ok {
				return nil, refuse(c[0].(string), cause)
			}
		}
		return r, nil
	default:
		return nil, fmt.Errorf("EXEC: unexpected reply %.64q", fmt.Sprint(r))
	}
}
