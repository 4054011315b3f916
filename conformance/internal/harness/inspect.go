package harness

import (
	"errors"
	"fmt"
	"iter"

	"github.com/golockers/locker"
)

// Entry is what a List yields for a key.
type Entry struct {
	locker.Info
	Err error
}

// errGoesOn is the error of a List that yields something after an error without a key.
var errGoesOn = errors.New("the iteration goes on after an error without a key")

// collect returns what a List yields, and the error that ends it.
func collect(list iter.Seq2[locker.Info, error]) (all []Entry, end error) {
	for info, err := range list {
		switch {
		case end != nil:
			return all, errors.Join(errGoesOn, end)
		case err != nil && info.Key == "":
			end = err
		default:
			all = append(all, Entry{info, err})
		}
	}
	return all, end
}

// describe returns an Info as the history prints it.
func describe(i locker.Info) string {
	s := "free"
	if i.Token != "" {
		s = Quote(i.Token) + " holds it"
		if i.TTL >= 0 {
			s += fmt.Sprintf(" for %.3fs", i.TTL.Seconds())
		}
	}
	if i.Waiters > 0 {
		s += fmt.Sprintf(", %d waiting", i.Waiters)
	}
	return s
}

// Inspect calls Inspect, whatever the answer.
func (c *Client) Inspect(key string) Call { return c.Do("Inspect", key, "", 0) }

// ShowsFree inspects a lock that must be free.
func (c *Client) ShowsFree(key, why string) Call {
	c.Env.TB.Helper()
	r := c.Inspected(c.Inspect(key), why)
	if r.Info.Token != "" {
		c.Env.FailAbout(key, fmt.Sprintf("%s.Inspect reports a free lock: %s", c.Name, why), fmt.Sprintf("%s.Inspect = %s", c.Name, r.Result()))
	}
	return r
}

// ShowsHolder inspects a lock that the token of held must hold, since held, and no call after it,
// took or extended it.
func (c *Client) ShowsHolder(held Call, why string) Call {
	c.Env.TB.Helper()
	r := c.Inspected(c.Inspect(held.Key), why)
	c.Env.Agrees(r, r.Info, held, why)
	c.Env.Uncontended(r, r.Info)
	return r
}

// Uncontended ends the check if info, which r returned, reports waiters. There are none.
func (e *Env) Uncontended(r Call, info locker.Info) {
	e.TB.Helper()
	if info.Waiters != 0 && info.Waiters != -1 {
		e.FailAbout(info.Key, fmt.Sprintf("%s.%s reports no waiters, or -1 if their number is not known", r.Client.Name, r.Op),
			fmt.Sprintf("it reports %d", info.Waiters))
	}
}

// Inspected ends the check if an Inspect returned an error or another key.
func (c *Client) Inspected(r Call, why string) Call {
	c.Env.TB.Helper()
	c.Must(r, true, why)
	if r.Info.Key != r.Key {
		c.Env.FailAbout(r.Key, fmt.Sprintf("%s.Inspect returns an Info of %s", c.Name, c.Env.Short(r.Key)),
			"its key is "+Quote(r.Info.Key))
	}
	return r
}

// Agrees ends the check unless info, which r returned, is what held has brought about.
func (e *Env) Agrees(r Call, info locker.Info, held Call, why string) {
	e.TB.Helper()
	method := r.Client.Name + "." + r.Op
	if info.Token != held.Token {
		e.FailAbout(held.Key, fmt.Sprintf("%s reports that %s holds %s: %s", method, e.Short(held.Token), e.Short(held.Key), why),
			fmt.Sprintf("%s = %s", method, describe(info)))
	}
	if info.TTL < 0 {
		return // not known
	}
	// The lock expires at the earliest when the ttl has passed since held began, and at the latest
	// when it has passed since held returned. The backend may count milliseconds, and truncate.
	unit := e.Granularity() + Slip.Time
	least, most := held.Until().Sub(r.End)-unit, held.End.Add(held.TTL).Sub(r.Start)+unit
	if info.TTL < least || info.TTL > most {
		e.FailAbout(held.Key, fmt.Sprintf("the TTL that %s reports is negative, if it is not known, or between %v and %v: "+
			"%s.%s asked for %v", method, max(least, 0), most, held.Client.Name, held.Op, held.TTL), fmt.Sprintf("it is %v", info.TTL))
	}
}
