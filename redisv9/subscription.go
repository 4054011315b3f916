package redisv9

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	linger       = 30 * time.Second       // a connection is kept this long after its last user
	channelRest  = time.Second            // a channel, about this long
	quiet        = 10 * time.Second       // a connection on which nothing was heard for so long is pinged
	tick         = time.Second            // how often a feed looks at its clocks
	reconnectMin = 20 * time.Millisecond  // the rest after a connection that broke,
	reconnectMax = 500 * time.Millisecond // after a few of them
)

// subscriptions are what a Locker listens to: the channels of the locks that are watched, and one of its
// own, on which it hears of locks that were handed to it. All channels share one connection, a feed, or one
// for each shard of a Ring. It is opened for the first listener, and closed half a minute after the last.
type subscriptions struct {
	timeout time.Duration // how long a server may take to answer
	inLine  atomic.Bool   // there are addresses, or were in the last half a minute

	mu       sync.Mutex
	channels map[string]*channel // those that are wanted
	idle     map[string]*channel // those of them that nobody listens to any more
	feeds    map[subscriber]*feed
	users    int       // how many listen, all channels together
	unused   time.Time // since when nobody does
	linger   time.Duration
}

// subscriber is a client that can subscribe.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// anySubscriber makes a map key of a client that may be none.
type anySubscriber struct{ subscriber }

// channel is a channel that is wanted.
type channel struct {
	listeners map[listener]struct{}
	addresses map[string]listener // those that have one; such a channel is kept as long as its connection
	retired   bool                // it has addresses, and is given up all the same, as soon as nobody listens
	unused    time.Time           // since when nobody listens
}

func (c *channel) message(payload string) {
	if c.addresses == nil {
		for who := range c.listeners {
			who.message(payload)
		}
		return
	}
	address, rest, _ := strings.Cut(payload, " ")
	if who, ok := c.addresses[address]; ok {
		who.message(rest)
	}
}

// listener is told of a channel's messages, and when it may have missed some. One with an address gets only
// the messages that begin with that and a space, without these. Its methods are called with the
// subscriptions locked: they must not block.
type listener interface {
	message(payload string)
	missed()
	address() string
}

// joining is a listener's wait for its subscription to be live.
type joining struct {
	open int   // how many feeds have not answered
	live bool  // one has it
	err  error // of one that has not
	done chan struct{}
}

// settle takes the answer of one feed.
func (j *joining) settle(err error) {
	if err == nil {
		j.live = true
	} else {
		j.err = err
	}
	if j.open--; j.open == 0 {
		close(j.done)
	}
}

// listen makes who a listener of the channel, and returns once it is subscribed to on one of the servers
// at least, and tried on all: one that cannot be reached now tells who that it missed something when it
// can. The listener stays until unlisten, but not after an error.
func (s *subscriptions) listen(ctx context.Context, servers []subscriber, name string, who listener) error {
	j := s.join(servers, name, who)
	var err error
	select {
	case <-j.done:
		if !j.live {
			err = j.err
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.unlisten(name, who)
	}
	return err
}

func (s *subscriptions) join(servers []subscriber, name string, who listener) *joining {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels == nil {
		s.channels, s.idle = make(map[string]*channel), make(map[string]*channel)
		s.feeds = make(map[subscriber]*feed)
	}
	c, wanted := s.channels[name]
	if !wanted {
		c = &channel{listeners: make(map[listener]struct{}, 1)}
		s.channels[name] = c
	}
	delete(s.idle, name)
	c.listeners[who] = struct{}{}
	if address := who.address(); address != "" {
		if c.addresses == nil {
			c.addresses = make(map[string]listener, 1)
			s.inLine.Store(true)
		}
		c.addresses[address] = who
	}
	s.users++

	j := &joining{open: len(servers), done: make(chan struct{})}
	for _, server := range servers {
		f, ok := s.feeds[server]
		if !ok {
			f = newFeed(s, server)
			s.feeds[server] = f
			go f.run()
		}
		if f.isLive(name) {
			j.settle(nil)
		} else {
			f.joining[name] = append(f.joining[name], j)
			f.changed[name] = struct{}{} // it may have been refused before
			f.wake()                     // from its rest, perhaps
		}
	}
	if !wanted {
		s.changed(name)
	}
	return j
}

// unlisten ends what listen began.
func (s *subscriptions) unlisten(name string, who listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.channels[name]
	if !ok {
		return
	}
	if _, ok := c.listeners[who]; !ok {
		return
	}
	delete(c.listeners, who)
	delete(c.addresses, who.address())
	switch {
	case len(c.listeners) > 0:
	case c.retired:
		s.drop(name)
	case c.addresses == nil:
		c.unused = time.Now()
		s.idle[name] = c
	}
	if s.users--; s.users == 0 {
		s.unused = time.Now()
	}
}

// retire has a channel given up as soon as nobody listens any more.
func (s *subscriptions) retire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.channels[name]; ok {
		if c.retired = true; len(c.listeners) == 0 {
			s.drop(name)
		}
	}
}

func (s *subscriptions) drop(name string) {
	delete(s.idle, name)
	delete(s.channels, name)
	s.changed(name)
}

// changed tells all feeds that a channel is wanted, or is no longer.
func (s *subscriptions) changed(name string) {
	for _, f := range s.feeds {
		f.changed[name] = struct{}{}
		f.wake()
	}
}

// sweep gives up the channels that nobody has listened to for a while. A moment's patience saves the
// requests where the next listener comes soon, and gives up many at once.
func (s *subscriptions) sweep(now time.Time) {
	for name, c := range s.idle {
		if now.Sub(c.unused) >= channelRest {
			s.drop(name)
		}
	}
}

// feed is the connection to one server, and what is subscribed to on it. Its fields are guarded by the
// subscriptions' lock.
type feed struct {
	subs   *subscriptions
	server subscriber

	kick    chan struct{} // something changed
	changed map[string]struct{}
	joining map[string][]*joining
	again   map[string]struct{} // channels that were lost: when they are back, something was missed

	// Of the present connection:
	state map[string]*subscription
	sent  []string  // the channels of the requests that are not answered yet, in order, and "" for a ping
	heard time.Time // when the last reply or message came, or the first of the unanswered requests went
}

// subscription is what a connection knows about a channel.
type subscription struct {
	on         bool // the last request was to subscribe
	unanswered int  // requests
}

func newFeed(s *subscriptions, server subscriber) *feed {
	return &feed{
		subs: s, server: server,
		kick:    make(chan struct{}, 1),
		changed: make(map[string]struct{}),
		joining: make(map[string][]*joining),
		again:   make(map[string]struct{}),
		state:   make(map[string]*subscription),
	}
}

func (f *feed) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *feed) isLive(name string) bool {
	s, ok := f.state[name]
	return ok && s.on && s.unanswered == 0
}

// run keeps the feed connected until nobody has used it for a while, or the client was closed.
func (f *feed) run() {
	pprof.SetGoroutineLabels(context.Background()) // it is not the work of the caller who came first
	rest := reconnectMin
	for {
		start := time.Now()
		err := f.connection()
		if err == nil {
			return
		}
		closed := errors.Is(err, redis.ErrClosed)
		f.broken(err, closed)
		if closed || f.isOver(time.Now()) {
			return
		}
		if time.Since(start) > tick {
			rest = reconnectMin
		}
		f.rest(rest)
		rest = min(2*rest, reconnectMax)
	}
}

// rest is the pause after a connection that broke. Who comes meanwhile cuts it short, but not under the
// least one.
func (f *feed) rest(d time.Duration) {
	select {
	case <-f.kick: // from before
	default:
	}
	time.Sleep(reconnectMin)
	select {
	case <-f.kick:
	case <-time.After(d - reconnectMin):
	}
}

// connection connects, subscribes to what is wanted as that changes, and returns why it broke, or nil when
// it is no longer wanted.
func (f *feed) connection() error {
	ctx := context.Background()
	f.begin()
	pubsub := f.server.Subscribe(ctx)
	defer pubsub.Close()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var broken chan error // once connected
	for {
		on, off := f.changes()
		for _, name := range on { // each by itself, so that each is refused by itself
			if err := pubsub.Subscribe(ctx, name); err != nil {
				return err
			}
		}
		if len(off) > 0 {
			if err := pubsub.Unsubscribe(ctx, off...); err != nil {
				return err
			}
		}
		if broken == nil && len(on) > 0 {
			broken = make(chan error, 1)
			go f.receive(pubsub, broken)
		}
		select {
		case err := <-broken:
			return err
		case <-f.kick:
		case now := <-ticker.C:
			ping, done, err := f.check(now)
			if ping && err == nil {
				err = pubsub.Ping(ctx)
			}
			if done || err != nil {
				return err
			}
		}
	}
}

// begin forgets the last connection: everything is to be subscribed to anew.
func (f *feed) begin() {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	clear(f.changed)
	clear(f.state)
	f.sent = nil
	f.heard = time.Now()
	for name := range f.subs.channels {
		f.changed[name] = struct{}{}
	}
	maps.DeleteFunc(f.again, func(name string, _ struct{}) bool { return f.subs.channels[name] == nil })
}

// changes returns what is to be subscribed to and what not any more, and counts that as sent.
func (f *feed) changes() (on, off []string) {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	for name := range f.changed {
		_, wanted := f.subs.channels[name]
		if !wanted {
			delete(f.joining, name) // who waited for it has gone
		}
		s, known := f.state[name]
		if wanted == (known && s.on) {
			continue
		}
		if !known {
			s = new(subscription)
			f.state[name] = s
		}
		s.on = wanted
		s.unanswered++
		if wanted {
			on = append(on, name)
		} else {
			off = append(off, name)
			delete(f.again, name)
		}
	}
	clear(f.changed)
	f.ask(on...)
	f.ask(off...)
	return on, off
}

// ask counts requests as sent.
func (f *feed) ask(names ...string) {
	if len(f.sent) == 0 && len(names) > 0 {
		f.heard = time.Now()
	}
	f.sent = append(f.sent, names...)
}

// answered returns the channel of the first of the unanswered requests.
func (f *feed) answered() (name string) {
	if len(f.sent) > 0 {
		name, f.sent = f.sent[0], f.sent[1:]
	}
	return name
}

// isOver says whether nobody has used the connections for a while: then the feed is done, and no longer one
// of the subscriptions' feeds.
func (f *feed) isOver(now time.Time) bool {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	return f.over(now)
}

func (f *feed) over(now time.Time) bool {
	s := f.subs
	s.sweep(now)
	if s.users > 0 || now.Sub(s.unused) < s.linger {
		return false
	}
	clear(s.channels)
	clear(s.idle)
	s.inLine.Store(false)
	delete(s.feeds, f.server)
	return true
}

// check looks at the clocks. It says whether to ping the server, and whether the feed is done.
func (f *feed) check(now time.Time) (ping, done bool, err error) {
	s := f.subs
	s.mu.Lock()
	defer s.mu.Unlock()
	silence := now.Sub(f.heard)
	switch {
	case f.over(now):
		return false, true, nil
	case len(f.sent) > 0 && silence > s.timeout:
		return false, false, fmt.Errorf("no answer within %v to a request to subscribe, or to a ping", s.timeout)
	case len(f.sent) == 0 && silence >= quiet:
		f.ask("")
		return true, false, nil
	}
	return false, false, nil
}

// receive takes what comes on the connection until it breaks.
func (f *feed) receive(pubsub *redis.PubSub, broken chan<- error) {
	pprof.SetGoroutineLabels(context.Background())
	defer func() {
		if p := recover(); p != nil { // go-redis's way with a server that does not speak the protocol
			broken <- fmt.Errorf("not a message: %v", p)
		}
	}()
	for {
		m, err := pubsub.Receive(context.Background())
		if redis.HasErrorPrefix(err, "NOPERM") {
			f.refused(err)
			continue
		}
		if err != nil {
			broken <- err
			return
		}
		f.took(m)
	}
}

func (f *feed) took(m any) {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	f.heard = time.Now()
	switch m := m.(type) {
	case *redis.Message:
		if c, ok := f.subs.channels[m.Channel]; ok {
			c.message(m.Payload)
		}
	case *redis.Pong:
		f.answered()
	case *redis.Subscription:
		f.answered()
		s, ok := f.state[m.Channel]
		if !ok {
			return
		}
		s.unanswered--
		switch {
		case s.unanswered > 0: // an older answer
		case s.on:
			f.nowLive(m.Channel)
		default:
			delete(f.state, m.Channel)
		}
	}
}

// refused tells those who wait for a channel that the server does not let its user subscribe to it. The
// connection is as good as before, and so are its other channels.
func (f *feed) refused(err error) {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	f.heard = time.Now()
	name := f.answered()
	s, ok := f.state[name]
	if !ok {
		return
	}
	if s.unanswered--; s.unanswered > 0 {
		return // an older answer
	}
	delete(f.state, name)
	for _, j := range f.joining[name] {
		j.settle(err)
	}
	delete(f.joining, name)
}

// nowLive tells those who waited for a channel that it is subscribed to.
func (f *feed) nowLive(name string) {
	for _, j := range f.joining[name] {
		j.settle(nil)
	}
	delete(f.joining, name)
	if _, ok := f.again[name]; ok {
		delete(f.again, name)
		f.tellMissed(name)
	}
}

func (f *feed) tellMissed(name string) {
	if c, ok := f.subs.channels[name]; ok {
		for who := range c.listeners {
			who.missed()
		}
	}
}

// broken tells everybody that the connection broke or could not be made: those who wait for it get the
// error; those who had it, that they miss something from now on. They are told so again once it is back,
// as only then is trying again sure not to miss a thing.
func (f *feed) broken(err error, forGood bool) {
	f.subs.mu.Lock()
	defer f.subs.mu.Unlock()
	if forGood {
		delete(f.subs.feeds, f.server)
	}
	for name := range f.state {
		if f.isLive(name) {
			f.tellMissed(name)
		}
	}
	clear(f.state)
	for _, waiting := range f.joining {
		for _, j := range waiting {
			j.settle(err)
		}
	}
	clear(f.joining)
	for name := range f.subs.channels {
		f.again[name] = struct{}{}
	}
}
