package postgres

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	markFor   = time.Minute      // releases tell the watchers for this long after a mark
	markAgain = 20 * time.Second // marks are made again
)

// listener is a connection that listens to the channel of a table, as a hub needs it. The hub's
// channels are one for each key that is watched, which is marked on the server, and one for all
// waiters, who only learn from the hub that messages may have been missed.
//
// Everything on the connection is done by Receive, one thing after the other. The other methods
// leave requests for it, and interrupt its wait for a notification.
type listener struct {
	l    *Locker
	conn *pgx.Conn

	// The session, as other sessions see it:
	pid   int32
	start *int64 // when it began, in microseconds since 1970; nil if it has changed its role

	asked []listenerRequest // since the last Flush

	mu       sync.Mutex
	requests []listenerRequest
	waiting  bool // for a notification

	// Only for Receive:
	events  []pubsub.Event
	watched map[string]struct{} // hub channels
	marked  time.Time           // when all of them were marked, or a little later
}

type listenerRequest struct {
	channel   string // "" for a ping
	subscribe bool
}

const (
	watchPrefix = "free "
	waitChannel = "wait"
)

// watchChannel is the hub's channel for the watchers of a key.
func watchChannel(key string) string {
	return watchPrefix + base64.StdEncoding.EncodeToString([]byte(key))
}

// listen makes a connection beside the pool's, so that waiting takes none from the pool's users.
func (l *Locker) listen(ctx context.Context, _ string) (pubsub.Conn, error) {
	if l.closed.Load() {
		return nil, pubsub.ErrClosed
	}
	settings := l.pool.Config()
	config := settings.ConnConfig
	config.OnNotification = nil // pgx's own keeps notifications for us
	if before := settings.BeforeConnect; before != nil {
		if err := before(ctx, config); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	c := &listener{l: l, conn: conn, watched: make(map[string]struct{}), marked: time.Now()}
	if err := c.begin(ctx, settings.AfterConnect); err != nil {
		c.Close()
		return nil, l.explain(err)
	}
	l.self.Store(c)
	return c, nil
}

// args returns the session as arguments of a statement, or nils.
func (c *listener) args() (pid *int32, start *int64) {
	if c == nil {
		return nil, nil
	}
	return &c.pid, c.start
}

func (c *listener) begin(ctx context.Context, after func(context.Context, *pgx.Conn) error) error {
	if after != nil {
		if err := after(ctx, c.conn); err != nil {
			return err
		}
	}
	var watchers string
	err := c.conn.QueryRow(ctx, c.l.sql.describe, pgx.QueryExecModeExec, c.l.table).Scan(&watchers, &c.pid, &c.start)
	if err != nil {
		return err
	}
	if uint32(c.pid) != c.conn.PgConn().PID() {
		return errPooler
	}
	for _, sql := range []string{
		"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
		fmt.Sprintf("LISTEN %q", watchers),
		fmt.Sprintf("LISTEN %q", "locker/"+c.l.name),
	} {
		if _, err := c.conn.Exec(ctx, sql, pgx.QueryExecModeExec); err != nil {
			return err
		}
	}
	return nil
}

func (c *listener) Subscribe(channel string) error   { return c.ask(listenerRequest{channel, true}) }
func (c *listener) Unsubscribe(channel string) error { return c.ask(listenerRequest{channel, false}) }
func (c *listener) Ping() error                      { return c.ask(listenerRequest{}) }

func (c *listener) ask(r listenerRequest) error {
	c.asked = append(c.asked, r)
	return nil
}

func (c *listener) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, c.asked...)
	c.asked = c.asked[:0]
	if c.waiting {
		return c.conn.PgConn().Conn().SetDeadline(time.Unix(1, 0)) // which is over
	}
	return nil
}

func (c *listener) Close() error {
	c.l.self.CompareAndSwap(c, nil)
	return c.conn.PgConn().Conn().Close()
}

// Receive returns the next answer or message.
func (c *listener) Receive() (pubsub.Event, error) {
	for {
		if len(c.events) > 0 {
			e := c.events[0]
			c.events = c.events[1:]
			return e, nil
		}
		if err := c.work(); err != nil {
			c.l.self.CompareAndSwap(c, nil)
			return pubsub.Event{}, err
		}
	}
}

// work answers requests, or waits for a notification.
func (c *listener) work() error {
	requests, waiting, err := c.rest()
	switch {
	case err != nil:
		return err
	case !waiting:
		return c.answer(requests)
	}
	n, err := c.conn.WaitForNotification(context.Background())
	c.mu.Lock()
	c.waiting = false
	c.mu.Unlock()
	if n != nil {
		c.hear(n.Payload)
	} else if !errors.Is(err, os.ErrDeadlineExceeded) || c.conn.IsClosed() {
		return err
	}
	return c.conn.PgConn().Conn().SetDeadline(time.Time{})
}

// rest returns the requests that have come. If there are none, it begins to wait for more.
func (c *listener) rest() (requests []listenerRequest, waiting bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	again := markAgain
	if len(c.watched) > 0 {
		again -= time.Since(c.marked)
	}
	if len(c.requests) > 0 || again <= 0 {
		requests = c.requests
		c.requests = nil
		return requests, false, nil
	}
	c.waiting = true
	return nil, true, c.conn.PgConn().Conn().SetDeadline(time.Now().Add(again))
}

// answer carries out requests.
func (c *listener) answer(requests []listenerRequest) error {
	if len(c.watched) == 0 {
		c.marked = time.Now()
	}
	var marks [][]byte
	ping := false
	for _, r := range requests {
		c.events = append(c.events, pubsub.Event{Kind: pubsub.Answer, Channel: r.channel})
		switch encoded, isWatch := strings.CutPrefix(r.channel, watchPrefix); {
		case r.channel == "":
			ping = true
		case isWatch && r.subscribe:
			c.watched[r.channel] = struct{}{}
			key, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return err
			}
			marks = append(marks, key)
		case isWatch:
			delete(c.watched, r.channel)
		}
	}
	switch since := time.Since(c.marked); {
	case len(c.watched) == 0:
	case since > markFor:
		return errors.New("the marks of watched keys have ended") // releases may have been missed
	case since >= markAgain:
		marks = marks[:0]
		for channel := range c.watched {
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(channel, watchPrefix))
			if err != nil {
				return err
			}
			marks = append(marks, key)
		}
		c.marked = time.Now()
	}
	return c.exchange(marks, ping)
}

// exchange marks keys, or makes sure that the server answers.
func (c *listener) exchange(marks [][]byte, ping bool) error {
	if len(marks) == 0 && !ping {
		return nil
	}
	socket := c.conn.PgConn().Conn()
	if err := socket.SetDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	var err error
	if len(marks) == 0 {
		err = c.conn.Ping(context.Background())
	}
	const most = 1000 // of one statement
	for batch := range slices.Chunk(marks, most) {
		if err == nil {
			_, err = c.conn.Exec(context.Background(), c.l.sql.mark, pgx.QueryExecModeExec, batch,
				pgtype.Interval{Microseconds: markFor.Microseconds(), Valid: true})
		}
	}
	if err != nil {
		return c.l.explain(err)
	}
	return socket.SetDeadline(time.Time{})
}

// hear turns a notification into a message. Any user can send a notification, so it is a hint
// unless it contains a nonce, which only the table has until the lock is handed over. If nobody here
// waits for that any more, the lock is passed on.
func (c *listener) hear(payload string) {
	kind, rest, _ := strings.Cut(payload, " ")
	switch kind {
	case "free":
		c.events = append(c.events, pubsub.Event{Kind: pubsub.Message, Channel: watchPrefix + rest})
	case "granted":
		key, nonce, _ := strings.Cut(rest, " ")
		if name, err := base64.StdEncoding.DecodeString(key); err == nil && strings.HasPrefix(nonce, c.l.name+"/") {
			if p := c.l.places.get(string(name)); p == nil || !p.granted(nonce) {
				c.l.undo(context.Background(), string(name), []string{nonce}, true) // nobody is left
			}
		}
	case "head":
		key, us, _ := strings.Cut(rest, " ")
		name, err := base64.StdEncoding.DecodeString(key)
		if n, bad := strconv.ParseInt(us, 10, 64); err == nil && bad == nil && n > 0 {
			if p := c.l.places.get(string(name)); p != nil {
				p.head(fromMicroseconds(n))
			}
		}
	}
}
