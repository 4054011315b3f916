package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/undo"
)

// Sending is an encoded token on its way to the server, perhaps more than once: a client may
// silently repeat a request whose reply was lost, but go-redis asks for the bytes each time. Once
// Ctx has ended there are none, so that nothing is sent for a caller that has left. Requests that
// certainly did nothing, such as those that a Cluster redirects, do not count.
type Sending struct {
	Ctx   context.Context
	Token string // encoded

	sends  int       // requests that may have left the process, but for those that did nothing
	before int       // sends before the present command
	first  time.Time // when the first of them left
	bytes  [32]byte  // room for a token of usual length

	command Command // the present one, or nil
	inBatch bool    // see BeginInBatch

	onlyRedirects bool // see Begin

	answered bool // it was sent once and came back with an answer
}

// NewSending returns a Sending of a token that is not encoded yet.
func NewSending(ctx context.Context, token string) *Sending {
	return &Sending{Ctx: ctx, Token: EncodeToken(token)}
}

// Command is a client's command that has a Sending as an argument. Clients set its error when a
// server has replied or has failed to.
type Command interface {
	Err() error
	SetErr(error)
}

// Begin announces the command with which the token is about to be sent. If the client runs code of
// its user when it connects, that code's errors look like replies to the command: then only those
// that redirect a command count as replies.
func (s *Sending) Begin(c Command, runsOnConnect bool) {
	s.command, s.before, s.onlyRedirects, s.inBatch = c, s.sends, runsOnConnect, false
}

// BeginInBatch is Begin for a command that may be sent together with others. An error from
// [Sending.MarshalBinary] would fail them all, so the token is sent even if Ctx ends meanwhile. A
// command whose Ctx has ended before must be left out. The token is sent once: after that,
// [ErrSentBefore] keeps the client from repeating the batch.
func (s *Sending) BeginInBatch(c Command, runsOnConnect bool) {
	s.Begin(c, runsOnConnect)
	s.inBatch = true
}

// ErrSentBefore is the error of a client that would have repeated a command; see
// [Sending.BeginInBatch].
var ErrSentBefore = errors.New("the request was sent before")

// End takes back the command's last request if the server replied that it did nothing.
func (s *Sending) End() {
	if s.didNothing(s.command.Err()) {
		s.Undo()
	}
	s.command, s.inBatch = nil, false
}

// Once sends a command with a client that does so once, or again only when the server replied that
// it did nothing. It counts the request, and takes it back if that is the reply.
func (s *Sending) Once(send func() error) error {
	if err := s.Ctx.Err(); err != nil {
		return err
	}
	s.before = s.sends
	s.count()
	err := send()
	if s.didNothing(err) {
		s.Undo()
	}
	return err
}

// Sends returns how often the token may have left the process, without the requests to which the
// server replied that it did nothing.
func (s *Sending) Sends() int { return s.sends }

// Undo takes back a request of the last command, if there was one: it did nothing.
func (s *Sending) Undo() {
	if s.sends > s.before {
		s.sends--
	}
}

// didNothing reports whether err is a server's reply to a request that it has not executed, because
// it does not have the slot, the data or the script, or may not write, or because the keys are in
// different slots. A server that may not write, or has no memory, refuses a script's first write. Once
// a script has written, it may go on.
func (s *Sending) didNothing(err error) bool {
	if err == nil {
		return false
	}
	word, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "ERR "), " ")
	switch word {
	case "MOVED", "ASK", "TRYAGAIN", "NOSCRIPT":
		return true
	case "CROSSSLOT", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "NOREPLICAS", "MISCONF", "OOM":
		return !s.onlyRedirects
	}
	return false
}

// came records the outcome of a request.
func (s *Sending) came(err error) { s.answered = err == nil && s.sends == 1 }

// MarshalBinary implements [encoding.BinaryMarshaler].
func (s *Sending) MarshalBinary() ([]byte, error) {
	if s.inBatch && s.sends > s.before {
		return nil, ErrSentBefore
	}
	if !s.inBatch {
		if err := s.Ctx.Err(); err != nil {
			return nil, err // unwrapped, since go-redis must not take it for a passing error
		}
	}
	// A Cluster redirects a command, and sends it again when it had no answer.
	if s.command != nil && s.didNothing(s.command.Err()) {
		s.Undo()
		s.command.SetErr(nil) // it says nothing about the next request
	}
	s.count()
	return append(s.bytes[:0], s.Token...), nil
}

// count counts a request that is about to leave.
func (s *Sending) count() {
	if s.sends++; s.sends == 1 {
		s.first = time.Now()
	}
}

// isOver reports, once the call has returned, whether no request can still arrive.
func (s *Sending) isOver() bool { return s.answered || s.sends == 0 }

// isUnsent reports, once the call has returned, whether the token certainly never left the process.
// If the call was left behind, that is not known.
func (s *Sending) isUnsent() bool { return s.Ctx.Err() == nil && s.sends == 0 }

// isForeign reports whether the request certainly did nothing because the lock's value is foreign.
func (s *Sending) isForeign(err error) bool {
	return errors.Is(err, ErrForeign) && s.Ctx.Err() == nil && s.sends == 1
}

// noCleanup returns err, the error of an attempt to take a lock whose only Sending is s, so that
// package locker does not clean up if the attempt certainly did nothing.
func (s *Sending) noCleanup(err error) error {
	if err != nil && s.isUnsent() {
		return undo.Needless(err)
	}
	return err
}

// String returns the token for hooks that log commands.
func (s *Sending) String() string { return s.Token }

// Refused returns nil if an attempt whose last request was refused has certainly not taken the
// lock, and otherwise an error. An earlier request that timed out may not have reached the server
// yet, and may take the lock when it is free. Or it took the lock, and the ttl has passed since.
func (s *Sending) Refused(timeout, ttl time.Duration) error {
	if since := time.Since(s.first); s.sends > 1 && since >= min(timeout, ttl) {
		return fmt.Errorf("refused, but the first of %d requests was sent %v ago and not answered, "+
			"and may have taken the lock in the meantime, or may yet", s.sends, since)
	}
	return nil
}

// Caller runs the operations of a Locker. The zero value is for a client that honors contexts.
type Caller struct {
	Err       error         // returned by every operation if there is no client
	Inline    time.Duration // see [inflight.Do]
	Unbounded bool          // the client has no timeout, so calls have [DefaultTimeout]

	calls inflight.Calls
}

// Leave leaves behind a request of s that is under way, as [inflight.Calls.Leave] does.
func (c *Caller) Leave(s *Sending, done <-chan struct{}, leave func(ended func()) bool) bool {
	return c.calls.Leave(s.Token, done, leave)
}

// DefaultTimeout is the timeout for calls of a client that has none.
const DefaultTimeout = 3 * time.Second

// Call runs an operation for s's token under s's ctx, as [inflight.Do] does.
func Call[T any](c *Caller, s *Sending, f func() (T, error)) (T, error) {
	return callAfter(c, s, false, f)
}

// CallInOrder is Call, after the calls for the token that earlier callers have left behind.
func CallInOrder[T any](c *Caller, s *Sending, f func() (T, error)) (T, error) {
	return callAfter(c, s, true, f)
}

func callAfter[T any](c *Caller, s *Sending, inOrder bool, f func() (T, error)) (T, error) {
	caller := s.Ctx
	if c.Unbounded {
		var cancel context.CancelFunc
		s.Ctx, cancel = context.WithTimeout(caller, DefaultTimeout)
		defer cancel()
	}
	err := c.Err
	if err == nil && inOrder {
		err = c.calls.Wait(s.Ctx, s.Token)
	}
	if err == nil {
		var v T
		if v, err = inflight.Do(s.Ctx, &c.calls, s.Token, c.Inline, f); err == nil {
			return v, nil
		}
	}
	if s.Ctx.Err() != nil && caller.Err() == nil {
		err = errNoReply
	}
	var zero T
	return zero, err
}

var errNoReply = errors.New("no reply within 3 seconds, and the client has no timeout of its own")

// roundTrip is the smoothed duration of a Locker's requests. It grows faster than it shrinks, since
// a lock is lost if the time to claim it is too short, and nothing is lost if it is too long.
type roundTrip struct{ ns atomic.Int64 }

func (r *roundTrip) add(d time.Duration) {
	old := r.ns.Load()
	weight := int64(8)
	switch {
	case old == 0:
		weight = 1
	case int64(d) > old:
		weight = 2
	}
	r.ns.CompareAndSwap(old, old+(int64(d)-old)/weight) // of several at once, one is enough
}

// claim returns how long a waiter needs to take a lock that it is offered, in seconds.
func (r *roundTrip) claim() int64 {
	return min(max((8*r.ns.Load()+int64(time.Second)-1)/int64(time.Second), 1), 10)
}

// milliseconds validates a ttl and rounds it up. Redis can express the longest Duration, 292 years,
// from any year on.
func milliseconds(ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, fmt.Errorf("%w: %v", locker.ErrInvalidTTL, ttl)
	}
	ms := ttl.Milliseconds()
	if ttl%time.Millisecond > 0 {
		ms++
	}
	return ms, nil
}
