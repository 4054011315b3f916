package redislock

import (
	"crypto/sha1"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Entry is a place in a queue, as it is stored there. The entry decides how it is served, not the
// client that releases the lock:
//
//   - Claim 0: if a connection to the server itself subscribes to the channel, the entry is
//     granted the lock for its ttl, and its waiter can rely on the message about that. Otherwise
//     the entry is dropped without a message. It is for clients that subscribe on the server that
//     keeps their locks, once they have subscribed.
//   - Claim > 0: it gets the lock for that time, and the message is only a hint: the waiter claims
//     the lock by a [Look] within that time, or loses it to the next.
type Entry struct {
	Channel string // of its process
	Nonce   string // its own, unguessable; no message contains it
	TTL     int64  // ms
	Permits int    // of the semaphore, as its waiter counts them; 0: it waits for a lock
	Token   string // encoded
}

// String returns the entry with a claim.
func (e Entry) String(claim time.Duration) string {
	b := make([]byte, 0, len(e.Channel)+len(e.Nonce)+len(e.Token)+32)
	b = append(append(b, e.Channel...), ' ')
	b = append(append(b, e.Nonce...), ' ')
	b = append(strconv.AppendInt(b, claim.Milliseconds(), 10), ' ')
	b = strconv.AppendInt(b, e.TTL, 10)
	if e.Permits > 0 {
		b = strconv.AppendInt(append(b, '/'), int64(e.Permits), 10)
	}
	b = append(b, ' ')
	return string(append(b, e.Token...))
}

// ID returns the name of the entry in messages. It is no secret, since others may receive them.
func (e Entry) ID() string { return sha1hex(e.Nonce)[:16] }

func sha1hex(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// Claim returns how long a waiter needs to claim a lock, if a round trip took rtt.
func Claim(rtt time.Duration) time.Duration {
	return min(max(8*rtt, time.Second), 10*time.Second)
}

// ServerTime is a server's clock, as the time since 1970.
type ServerTime time.Duration

// Kind is the kind of a [Message].
type Kind int

const (
	Granted Kind = iota + 1 // the waiter has had the lock since Time, for its ttl
	Claimed                 // the waiter has the lock if it claims it now
	Head                    // the waiter is the first now, and another has the lock for Left
	Probe                   // the waiter must look at once, or its process counts as gone
	Dropped                 // the waiter has lost its place, because its process seemed to be gone
)

// Message is a message to a waiter: "<id> <ticket> <kind> <more>". Users of the server that cannot
// read the queue may be able to receive and send messages. So a message is a hint, except for a
// grant, which carries a proof: "grant <seconds> <micros> <proof>", and in the end the number of the
// permit if it is for one of several.
type Message struct {
	ID     string // of the entry that it is for
	Ticket string // of that entry; later entries of the same waiter have others
	Kind   Kind
	Time   ServerTime    // of a grant
	Proof  string        // of a grant: a hash of its ticket, its time, its permit, and the entry's nonce
	Permit int           // of a grant: its number, from 1 on; 0: it is for a lock
	Left   time.Duration // of a Head
}

// IsForged reports whether m is a grant whose sender does not know the nonce.
func (m Message) IsForged(nonce string) bool {
	t := time.Duration(m.Time)
	about := fmt.Sprintf("%s %d %d ", m.Ticket, t/time.Second, t%time.Second/time.Microsecond)
	if m.Permit > 0 {
		about += strconv.Itoa(m.Permit) + " "
	}
	proof := sha1hex(about + nonce)
	return m.Kind == Granted && subtle.ConstantTimeCompare([]byte(m.Proof), []byte(proof)) == 0
}

// ParseMessage parses payload and reports whether it is a message.
func ParseMessage(payload string) (m Message, ok bool) {
	fields := strings.Split(payload, " ")
	if len(fields) < 3 {
		return m, false
	}
	m.ID, m.Ticket = fields[0], fields[1]
	switch kind, more := fields[2], fields[3:]; {
	case kind == "grant" && (len(more) == 3 || len(more) == 4):
		t, err := parseTime(more[0], more[1])
		m.Kind, m.Time, m.Proof = Granted, t, more[2]
		if err == nil && len(more) == 4 {
			m.Permit, err = strconv.Atoi(more[3])
		}
		return m, err == nil && m.Permit >= 0
	case kind == "claim" && len(more) == 0:
		m.Kind = Claimed
	case kind == "head" && len(more) == 1:
		ms, err := strconv.ParseInt(more[0], 10, 64)
		m.Kind, m.Left = Head, remaining(ms)
		return m, err == nil
	case kind == "look" && len(more) == 0:
		m.Kind = Probe
	case kind == "drop" && len(more) == 0:
		m.Kind = Dropped
	default:
		return m, false
	}
	return m, true
}

// Place is the answer to a [Look].
type Place struct {
	Acquired  bool          // the waiter's token holds the lock; the fields below are zero
	Permit    int           // if it is one of several: its number, from 1 on
	Left      time.Duration // of the holder's time, no more than [LookAgain]
	Rank      int64         // number of entries before it
	Time      ServerTime    // of the answer
	Ticket    string        // of its entry
	IsNew     bool          // it was not in the queue before
	Unclaimed bool          // the lock waits to be claimed
	Unheard   bool          // its entry has claim 0, but its channel has no subscriber on this server
}

// ParsePlace reads the reply to a Look with an entry, or to a PermitsLook with the entry of a
// waiter that counts so many permits; otherwise permits is 0. A 0 comes from a Look without the
// queue's key.
func ParsePlace(reply any, permits int) (p Place, err error) {
	n, ok := reply.(int64)
	switch {
	case ok && permits == 0 && (n == 0 || n == 1):
		return Place{Acquired: n == 1}, nil
	case ok && n > 0 && n <= int64(permits):
		return Place{Acquired: true, Permit: int(n)}, nil
	}
	list, _ := reply.([]any)
	if len(list) != 8 {
		return p, fmt.Errorf("the server's reply is not a place in the queue: %v", reply)
	}
	left, ok1 := list[0].(int64)
	rank, ok2 := list[1].(int64)
	seconds, ok3 := list[2].(string)
	micros, ok4 := list[3].(string)
	ticket, ok5 := list[4].(string)
	isNew, ok6 := list[5].(int64)
	unclaimed, ok7 := list[6].(int64)
	listens, ok8 := list[7].(int64)
	now, err := parseTime(seconds, micros)
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && ok7 && ok8) || err != nil {
		return p, fmt.Errorf("the server's reply is not a place in the queue: %v", reply)
	}
	return Place{
		Left: remaining(left), Rank: rank, Time: now, Ticket: ticket,
		IsNew: isNew == 1, Unclaimed: unclaimed > 0, Unheard: listens == 0,
	}, nil
}

// remaining converts PTTL's reply, and cuts what is longer than a waiter waits without a look.
func remaining(ms int64) time.Duration {
	switch {
	case ms == -1: // it has no expiry
		return LookAgain
	case ms < 0: // there is no lock
		return 0
	}
	return time.Duration(min(ms, LookAgain.Milliseconds())) * time.Millisecond
}

// parseTime reads a time as the server gives it.
func parseTime(seconds, micros string) (ServerTime, error) {
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseInt(micros, 10, 64)
	return ServerTime(time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond), err
}

// Freed is the answer to a [Release] or a [Sweep].
type Freed struct {
	Released bool          // the token held the lock, which is now free or has another holder
	Left     bool          // the entry has left the queue, and the token did not hold the lock
	SweepIn  time.Duration // when the queue needs a Sweep; negative: it does not
}

// ParseFreed reads the reply.
func ParseFreed(reply any) (f Freed, err error) {
	n, ok := reply.(int64)
	if !ok || n < 0 {
		return f, fmt.Errorf("unexpected reply to a release: %v", reply)
	}
	f.Released, f.Left, f.SweepIn = n%10 == 1, n%10 == 2, -1
	switch n / 10 {
	case 1:
		f.SweepIn = 0
	case 2:
		f.SweepIn = Claim(0) + sweepLate
	}
	return f, nil
}

// ParseFence reads the reply to a [Fence] or a [Count]: 0 if the token does not hold the lock.
func ParseFence(reply any, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	if number, ok := reply.(string); ok {
		if n, err := strconv.ParseUint(number, 10, 63); err == nil {
			return n, nil
		}
	}
	if reply != int64(0) {
		err = fmt.Errorf("unexpected reply to a request for a fencing number: %v", reply)
	}
	return 0, err
}
