package redigo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

const (
	linger    = 30 * time.Second // how long the connection is kept after the last watcher
	quiet     = 10 * time.Second // without a word from the server, after which it is asked for one
	firstRest = 50 * time.Millisecond
	longRest  = 3 * time.Second // between attempts to connect again, at most
	dialLimit = 30 * time.Second
)

// Watch implements [locker.Watcher]: a Release by any Locker of this package wakes. On a server that does not
// know SUBSCRIBE, or does not allow it, the error wraps [errors.ErrUnsupported]. Watchers are woken when
// the connection that they share breaks, and again when there is another.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if l.subscriber == nil { // made without New
		return nil, wrap("watch", key, errNilPool)
	}
	wake, err := l.subscriber.watch(ctx, l.prefix+key)
	if err != nil {
		return nil, wrap("watch", key, err)
	}
	return wake, nil
}

// dial makes a connection beside the pool's, so that waiting for a lock takes none from those who use one.
func (l *Locker) dial(ctx context.Context) (redis.Conn, error) {
	switch {
	case l.pool == nil:
		return nil, errNilPool
	case l.pool.DialContext != nil:
		return l.pool.DialContext(ctx)
	case l.pool.Dial != nil:
		return l.pool.Dial()
	}
	return nil, errors.New("the pool has no Dial function")
}

// subscriber keeps one connection on which channels are subscribed to, for all that watch one. Two
// goroutines serve it: run, which alone writes, and listen, which alone reads. They are there while
// somebody watches, and for linger longer.
type subscriber struct {
	dial   func(context.Context) (redis.Conn, error)
	home   string // a channel that is always subscribed to; doing so again asks for a sign of life
	linger time.Duration
	quiet  time.Duration

	changed chan struct{} // tells run that fresh or dropped have changed

	mu      sync.Mutex
	running bool
	topics  map[string]*topic // by channel
	fresh   []*topic          // to be subscribed to
	dropped []string          // channels that are not to be any more
	owed    []debt            // the replies that the server owes on this connection, in their order
	heard   time.Time         // when it last said anything
	emptied time.Time         // when the last topic went
}

// topic is one channel that somebody watches.
type topic struct {
	channel  string
	watchers map[*watcher]struct{}
	queued   bool // it is among fresh
	sent     bool // SUBSCRIBE has been sent on this connection
	live     bool // and was confirmed
	missed   bool // what was published since an earlier connection broke
}

type watcher struct {
	wake  chan struct{} // has room for one
	ready chan error    // has room for one: nil once the subscription is live, or why it will not be
	told  bool          // ready has been sent
	tried bool          // a connection broke before it was ready
}

// debt is a reply to SUBSCRIBE (for home, if topic is nil) or UNSUBSCRIBE.
type debt struct {
	channel string
	topic   *topic
	since   time.Time
}

func newSubscriber(home string, dial func(context.Context) (redis.Conn, error)) *subscriber {
	return &subscriber{
		dial: dial, home: home, linger: linger, quiet: quiet,
		changed: make(chan struct{}, 1), topics: make(map[string]*topic),
	}
}

// watch returns once the subscription is live.
func (s *subscriber) watch(ctx context.Context, channel string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &watcher{wake: make(chan struct{}, 1), ready: make(chan error, 1)}
	s.add(channel, w)
	select {
	case err := <-w.ready:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		s.remove(channel, w)
		return nil, ctx.Err()
	}
	context.AfterFunc(ctx, func() { s.remove(channel, w) })
	return w.wake, nil
}

func (s *subscriber) add(channel string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		t = &topic{channel: channel, watchers: make(map[*watcher]struct{})}
		s.topics[channel] = t
	}
	t.watchers[w] = struct{}{}
	switch {
	case t.live:
		w.tell(nil)
	case !t.sent:
		s.queue(t)
	}
	if !s.running {
		s.running = true
		go s.run()
	}
	s.change()
}

func (s *subscriber) queue(t *topic) {
	if !t.queued {
		t.queued = true
		s.fresh = append(s.fresh, t)
	}
}

func (s *subscriber) remove(channel string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[channel]; t != nil {
		s.drop(t, w)
	}
}

// drop forgets w, and t when w was the last.
func (s *subscriber) drop(t *topic, w *watcher) {
	delete(t.watchers, w)
	if len(t.watchers) > 0 {
		return
	}
	delete(s.topics, t.channel)
	if len(s.topics) == 0 {
		s.emptied = time.Now()
	}
	if t.sent {
		s.dropped = append(s.dropped, t.channel)
	}
	s.change()
}

func (s *subscriber) change() {
	select {
	case s.changed <- struct{}{}:
	default: // run has yet to look
	}
}

func (t *topic) wake() {
	for w := range t.watchers {
		select {
		case w.wake <- struct{}{}:
		default: // it has yet to take the last one
		}
	}
}

func (w *watcher) tell(err error) {
	if !w.told {
		w.told = true
		w.ready <- err
	}
}

// run connects, and connects again, for as long as somebody watches.
func (s *subscriber) run() {
	// A goroutine inherits labels, but this one is not only the first watcher's.
	pprof.SetGoroutineLabels(context.Background())
	rest := time.Duration(0)
	for {
		start := time.Now()
		err := s.connect()
		if time.Since(start) > longRest {
			rest = 0
		} else {
			rest = min(max(2*rest, firstRest), longRest)
		}
		if s.disconnected(err) {
			return
		}
		select {
		case <-time.After(rest/2 + rand.N(rest/2+1)):
		case <-s.changed: // somebody new is waiting, or the last one has gone
		}
	}
}

// disconnected starts afresh. Who had a subscription may have missed something from now until there is
// another: it is woken, and once more then. Who waited for one is told that there is none; if that was the
// connection's fault it waits for another one first. It says whether nobody watches any more.
func (s *subscriber) disconnected(err error) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost *connectionError
	isLost := errors.As(err, &lost)
	s.owed, s.fresh = nil, nil
	for _, t := range s.topics {
		if t.live {
			t.missed = true
			t.wake()
		}
		t.queued, t.sent, t.live = false, false, false
		for w := range t.watchers {
			if err == nil || w.told || isLost && !w.tried {
				w.tried = true
				continue
			}
			w.tell(err)
			s.drop(t, w)
		}
		if len(t.watchers) > 0 {
			s.queue(t)
		}
	}
	s.dropped = nil
	s.running = len(s.topics) > 0
	return !s.running
}

// connectionError says that a connection was there and broke.
type connectionError struct{ cause error }

func (e *connectionError) Error() string { return "connection lost: " + e.cause.Error() }
func (e *connectionError) Unwrap() error { return e.cause }

// connect serves one connection, until it breaks or nobody has needed it for a while: then err is nil.
func (s *subscriber) connect() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	conn, err := usable(s.dial(ctx))
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	go func() { lost <- s.listen(redis.PubSubConn{Conn: conn}) }()
	if err = s.write(conn, lost); err != nil {
		err = &connectionError{err}
	}
	conn.Close()
	<-lost
	return err
}

// write sends what there is to send over a connection, until it is lost or not needed any more.
func (s *subscriber) write(conn redis.Conn, lost chan error) error {
	tick := time.NewTicker(min(s.linger, time.Second))
	defer tick.Stop()
	s.mu.Lock()
	s.heard, s.emptied = time.Now(), time.Now()
	s.mu.Unlock()
	asked := true // for a sign of life
	for {
		if err := send(conn, s.due(asked)); err != nil {
			return err
		}
		asked = false
		select {
		case <-s.changed:
		case err := <-lost:
			lost <- err
			return err
		case <-tick.C:
			s.mu.Lock()
			silence, idle := time.Since(s.heard), time.Since(s.emptied)
			mute := len(s.owed) > 0 && time.Since(s.owed[0].since) > ioTimeout
			empty := len(s.topics) == 0
			s.mu.Unlock()
			switch {
			case mute:
				return fmt.Errorf("no reply in %v", ioTimeout)
			case empty && idle >= s.linger:
				return nil
			}
			asked = silence > s.quiet
		}
	}
}

// due is what has to be sent now; the replies are owed from here on.
func (s *subscriber) due(ask bool) (commands []command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if ask {
		commands = append(commands, command{"SUBSCRIBE", s.home})
		s.owed = append(s.owed, debt{s.home, nil, now})
	}
	for _, channel := range s.dropped {
		commands = append(commands, command{"UNSUBSCRIBE", channel})
		s.owed = append(s.owed, debt{channel, nil, now})
	}
	for _, t := range s.fresh {
		t.queued = false
		if s.topics[t.channel] == t { // and has not gone meanwhile
			t.sent = true
			commands = append(commands, command{"SUBSCRIBE", t.channel})
			s.owed = append(s.owed, debt{t.channel, t, now})
		}
	}
	s.dropped, s.fresh = nil, nil
	return commands
}

// send writes commands. It is not known to have a timeout, so it gets one.
func send(conn redis.Conn, commands []command) error {
	if len(commands) == 0 {
		return nil
	}
	timeout := time.AfterFunc(ioTimeout, func() { conn.Close() })
	defer timeout.Stop()
	for _, c := range commands {
		if err := conn.Send(c[0].(string), c[1:]...); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// listen takes what the server sends, until the connection is lost.
func (s *subscriber) listen(conn redis.PubSubConn) (err error) {
	for err == nil {
		err = s.heed(next(conn))
	}
	return err
}

func next(conn redis.PubSubConn) (received any) {
	defer func() {
		if p := recover(); p != nil { // see replies
			received = fmt.Errorf("redigo panicked: %v", p)
		}
	}()
	return conn.ReceiveWithTimeout(0)
}

func (s *subscriber) heed(received any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = time.Now()
	switch r := received.(type) {
	case redis.Message:
		if t := s.topics[r.Channel]; t != nil {
			t.wake()
		}
		return nil
	case redis.Subscription:
		if len(s.owed) == 0 || s.owed[0].channel != r.Channel {
			return fmt.Errorf("a reply to %s %q that nobody asked for", r.Kind, r.Channel)
		}
		t := s.owed[0].topic
		s.owed = s.owed[1:]
		if t != nil {
			s.confirmed(t)
		}
		return nil
	case redis.Error:
		if len(s.owed) == 0 {
			return r
		}
		t := s.owed[0].topic
		s.owed = s.owed[1:]
		if t != nil {
			s.refused(t, r)
		}
		return nil
	case error:
		return r
	default:
		return fmt.Errorf("unexpected message %T", r)
	}
}

func (s *subscriber) confirmed(t *topic) {
	t.live = true
	if t.missed {
		t.missed = false
		t.wake()
	}
	for w := range t.watchers {
		w.tell(nil)
	}
}

// refused tells those who wait for the subscription. Who had it before goes without, until somebody asks
// again or there is another connection.
func (s *subscriber) refused(t *topic, cause redis.Error) {
	t.sent = false
	err := error(&refusal{"SUBSCRIBE", cause})
	if unknown(cause) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	for w := range t.watchers {
		if !w.told {
			w.tell(err)
			s.drop(t, w)
		}
	}
}
