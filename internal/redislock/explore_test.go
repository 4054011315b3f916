package redislock_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An explorer of the queue. The scripts run on a server that is set to each state. The processes are
// a model of what wait.go and undo.go do: requests may be lost, late or sent twice, replies and
// messages may be lost, a process may die, and offers and the locks of the dead may end.

// process is a process with waiters for one lock.
type process struct {
	Left    int    // waiters that have not been served
	Gen     int    // of its entries and tokens
	Ticket  string // of its entry
	InQueue bool   // the entry may be in the queue
	Holds   int    // the generation whose token it believes to hold the lock; 0: none
	Twice   bool   // a copy of one of its requests may arrive
	Undo    []int  // generations whose tokens and entries it undoes
	Dead    bool
}

// request is a look that may arrive at any time from now on.
type request struct {
	P, Gen int
	Ticket string
	Next   bool
}

// message is one that a process has not read.
type message struct {
	P, Gen  int
	IsOffer bool
}

type state struct {
	Lock     string
	Queue    []string // entries in order, with their scores
	Scores   []float64
	P        []process
	Late     []request
	Messages []message
	Lost     []message // offers that no process will read
	Faults   int       // that may yet happen
	before   *state
}

func (s *state) clone() *state {
	c := *s
	c.Queue, c.Scores = slices.Clone(s.Queue), slices.Clone(s.Scores)
	c.P, c.Late = slices.Clone(s.P), slices.Clone(s.Late)
	c.Messages, c.Lost = slices.Clone(s.Messages), slices.Clone(s.Lost)
	for i := range c.P {
		c.P[i].Undo = slices.Clone(c.P[i].Undo)
	}
	return &c
}

// key describes a state without the times in its tickets.
func (s *state) key() string {
	var tickets []string
	add := func(t string) {
		if t != "" && !slices.Contains(tickets, t) {
			tickets = append(tickets, t)
		}
	}
	for _, score := range s.Scores {
		add(strconv.FormatInt(int64(score)/32, 10))
	}
	for _, p := range s.P {
		add(p.Ticket)
	}
	for _, r := range s.Late {
		add(r.Ticket)
	}
	slices.SortFunc(tickets, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	rank := func(t string) int { return slices.Index(tickets, t) }
	var b strings.Builder
	fmt.Fprint(&b, s.Lock, s.Queue, s.Faults)
	for i, score := range s.Scores {
		fmt.Fprint(&b, " ", rank(strconv.FormatInt(int64(s.Scores[i])/32, 10)), int64(score)%32)
	}
	for _, p := range s.P {
		t := rank(p.Ticket)
		p.Ticket = ""
		fmt.Fprint(&b, p, t)
	}
	for _, r := range s.Late {
		t := rank(r.Ticket)
		r.Ticket = ""
		fmt.Fprint(&b, r, t)
	}
	messages := slices.Clone(s.Messages)
	slices.SortFunc(messages, func(a, b message) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	fmt.Fprint(&b, messages, s.Lost)
	return b.String()
}

// explorer explores with scripts and processes that may have planted mistakes.
type explorer struct {
	w             *world
	look, release string
	noUndo        bool // what has no answer is not undone
	noCopies      bool // the copy of a request is forgotten when its lock is released,
	noOldCopies   bool // or if it did not take the lock,
	noLeftCopies  bool // or when its waiter leaves
	noNewEntry    bool // the next waiter has the entry of one whose request has no answer
	noEntries     bool // what has no answer is undone, but for its entries
	samples       int  // of the states from which all are to be served
	states        int
	seen          map[string]bool
}

func token(p, gen int) string     { return fmt.Sprintf("t%d.%d", p, gen) }
func entryName(p, gen int) string { return fmt.Sprintf("!wait:p%d %d.0.k", p, gen) }

// eval runs a script in state s, and reads the state that it leaves and the messages that it sends.
func (e *explorer) eval(s *state, script string, args ...any) any {
	ctx, c := e.w.tb.Context(), e.w.client
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.FlushAll(ctx)
		if s.Lock != "" {
			p.Set(ctx, e.w.keys[1], s.Lock, 0)
		}
		for i, entry := range s.Queue {
			p.ZAdd(ctx, e.w.keys[0], redis.Z{Score: s.Scores[i], Member: entry})
		}
		return nil
	})
	require.NoError(e.w.tb, err)
	// The script tells what it publishes. A dead process is not counted.
	reply, err := c.Eval(ctx, script, e.w.keys, args...).Result()
	require.NoError(e.w.tb, err)
	var lock *redis.StringCmd
	var queue *redis.ZSliceCmd
	var sent *redis.StringSliceCmd
	_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		lock, queue, sent = p.Get(ctx, e.w.keys[1]), p.ZRangeWithScores(ctx, e.w.keys[0], 0, -1), p.LRange(ctx, "sent", 0, -1)
		return nil
	})
	s.Lock, s.Queue, s.Scores = lock.Val(), nil, nil
	for _, z := range queue.Val() {
		s.Queue, s.Scores = append(s.Queue, z.Member.(string)), append(s.Scores, z.Score)
	}
	for _, m := range sent.Val() {
		var p, gen int
		var what string
		if n, _ := fmt.Sscanf(m, "!wait:p%d %d.0.k %s", &p, &gen, &what); n == 3 && !s.P[p].Dead {
			if m := (message{p, gen, what == "offer"}); !slices.Contains(s.Messages, m) {
				s.Messages = append(s.Messages, m)
			}
		}
	}
	return reply
}

// recorded is a script that keeps what it publishes in a list. All processes but the dead are heard;
// the explorer's are not counted, except when counted is true.
func recorded(script string) string {
	return `local published = function(channel, what)
		redis.call('RPUSH', 'sent', channel .. ' ' .. what)
		return 1
	end
	` + strings.ReplaceAll(script, "redis.pcall('PUBLISH', ", "published(")
}

// looks executes a look of process p, and returns its reply.
func (e *explorer) looks(s *state, r request) (took bool, ticket string) {
	next := ""
	if r.Next {
		next = entryName(r.P, r.Gen+1)
	}
	reply := e.eval(s, e.look, token(r.P, r.Gen), 60_000, entryName(r.P, r.Gen), r.Ticket, 1, next, "").([]any)
	return reply[0].(int64) > 0, reply[3].(string)
}

func (e *explorer) releases(s *state, token string, entries ...int) {
	args := []any{token, ""}
	for i := 0; i < len(entries); i += 2 {
		args = append(args, entryName(entries[i], entries[i+1]))
	}
	e.eval(s, e.release, args...)
}

// took is what a process does when it learns that it has the lock, or has a place.
func (e *explorer) answered(s *state, r request, took bool, ticket string, twice bool) {
	p := &s.P[r.P]
	p.Twice = p.Twice && !(took && e.noOldCopies) || twice
	if !took {
		p.Ticket, p.InQueue = ticket, true
		return
	}
	p.Holds = r.Gen
	p.Left--
	p.Gen++
	p.Ticket, p.InQueue = ticket, ticket != ""
}

// failed is what a process does when a look has no answer: all its waiters fail, and come again.
func (e *explorer) failed(s *state, p int) {
	if !e.noUndo {
		s.P[p].Undo = append(s.P[p].Undo, s.P[p].Gen)
	}
	if e.noNewEntry {
		return
	}
	s.P[p].Gen += 2 // the entry of the next one may be in the queue as well
	s.P[p].Ticket, s.P[p].InQueue, s.P[p].Twice = "", false, false
}

// isLate reports whether a look of that generation may yet arrive.
func (s *state) isLate(p, gen int) bool {
	return slices.ContainsFunc(s.Late, func(r request) bool { return r.P == p && r.Gen == gen })
}

// next returns the states that may follow s. Without faults, nothing more is lost.
func (e *explorer) next(s *state, fair bool) (all []*state) {
	add := func(do func(c *state)) {
		c := s.clone()
		c.before = s
		do(c)
		all = append(all, c)
	}
	for i := range s.P {
		p := s.P[i]
		if p.Dead {
			continue
		}
		if p.Left > 0 && p.Holds == 0 {
			r := request{i, p.Gen, p.Ticket, p.Left > 1}
			add(func(c *state) { took, ticket := e.looks(c, r); e.answered(c, r, took, ticket, false) })
			if s.Faults > 0 && !fair {
				add(func(c *state) { // it arrives later, or the reply is lost: then a copy of it has no effect
					c.Faults--
					c.Late = append(c.Late, r)
					e.failed(c, i)
				})
				add(func(c *state) { // it is sent twice, and the first copy arrives later
					c.Faults--
					took, ticket := e.looks(c, r)
					c.Late = append(c.Late, r)
					e.answered(c, r, took, ticket, true)
				})
			}
			if p.InQueue && !fair { // the last waiter leaves
				add(func(c *state) {
					if p.Twice && !e.noLeftCopies {
						c.P[i].Undo = append(c.P[i].Undo, p.Gen)
					} else {
						e.releases(c, "nobody", i, p.Gen)
					}
					c.P[i].Left, c.P[i].InQueue, c.P[i].Twice = 0, false, false
					c.P[i].Gen += 2
				})
			}
		}
		if p.Holds > 0 {
			add(func(c *state) {
				e.releases(c, token(i, p.Holds))
				if p.Twice && !e.noCopies {
					c.P[i].Undo = append(c.P[i].Undo, p.Holds)
				}
				c.P[i].Holds, c.P[i].Twice = 0, false
			})
		}
		for k, gen := range p.Undo {
			add(func(c *state) {
				entries := []int{i, gen, i, gen + 1}
				if e.noEntries {
					entries = nil
				}
				e.releases(c, token(i, gen), entries...)
				if !s.isLate(i, gen) {
					c.P[i].Undo = slices.Delete(c.P[i].Undo, k, k+1)
				}
			})
		}
		if s.Faults > 0 && !fair {
			add(func(c *state) { c.Faults--; c.P[i] = process{Dead: true} })
		}
	}
	for k, r := range s.Late {
		add(func(c *state) { c.Late = slices.Delete(c.Late, k, k+1); e.looks(c, r) })
	}
	for k, m := range s.Messages {
		add(func(c *state) {
			c.Messages = slices.Delete(c.Messages, k, k+1)
			p := c.P[m.P]
			if m.IsOffer && !p.Dead && !(p.Left > 0 && p.Holds == 0 && p.Gen == m.Gen) {
				e.releases(c, "nobody", m.P, m.Gen)
			}
		})
	}
	if s.Faults > 0 && !fair {
		for k, m := range s.Messages {
			add(func(c *state) {
				c.Faults--
				c.Messages = slices.Delete(c.Messages, k, k+1)
				if m.IsOffer {
					c.Lost = append(c.Lost, m)
				}
			})
		}
	}
	if s.endsAlone() {
		add(func(c *state) { c.Lock = "" })
	}
	return all
}

// endsAlone reports whether the lock may end by itself: it is offered, or its holder is dead.
func (s *state) endsAlone() bool {
	var p, gen int
	if strings.HasPrefix(s.Lock, "offer:") {
		return true
	}
	n, _ := fmt.Sscanf(s.Lock, "t%d.%d", &p, &gen)
	return n == 2 && s.P[p].Dead
}

// wrong returns what is wrong with a state.
func (e *explorer) wrong(s *state) string {
	holders, isUndone := 0, false
	for i, p := range s.P {
		if p.Holds > 0 {
			if holders++; s.Lock != token(i, p.Holds) {
				return "a holder does not have the lock"
			}
		}
		for _, gen := range p.Undo {
			isUndone = isUndone || s.Lock == token(i, gen)
		}
		if !p.Dead && p.Left > 0 && p.Holds == 0 { // its next look finds it
			isUndone = isUndone || s.Lock == token(i, p.Gen)
		}
	}
	var p, gen int
	if n, _ := fmt.Sscanf(s.Lock, "offer:!wait:p%d %d.", &p, &gen); n == 2 && !s.P[p].Dead {
		isAwaited := s.P[p].Left > 0 && s.P[p].Holds == 0 && s.P[p].Gen == gen
		isUndone := slices.ContainsFunc(s.P[p].Undo, func(g int) bool { return g == gen || g+1 == gen })
		offer := message{p, gen, true}
		if !isAwaited && !isUndone && !slices.Contains(s.Messages, offer) && !slices.Contains(s.Lost, offer) {
			return "an offer that nobody takes or passes on"
		}
	}
	for _, entry := range s.Queue {
		if n, _ := fmt.Sscanf(entry, "!wait:p%d %d.", &p, &gen); n == 2 && !s.isWanted(p, gen) {
			return "an entry that nobody stands behind"
		}
	}
	switch {
	case holders > 1:
		return "two holders"
	case holders == 0 && strings.HasPrefix(s.Lock, "t") && !isUndone && !s.endsAlone():
		return "nobody has the lock that a token holds"
	}
	return ""
}

// isWanted reports whether an entry belongs to a waiter, or will be undone, or its process is dead.
func (s *state) isWanted(p, gen int) bool {
	of := s.P[p]
	if of.Dead || of.Left > 0 && (of.Gen == gen || of.Gen+1 == gen) { // its own, or that of the next
		return true
	}
	return slices.ContainsFunc(of.Undo, func(g int) bool { return g == gen || g+1 == gen })
}

// served lets everything happen that can, without faults, and reports whether all waiters are served.
func (e *explorer) served(s *state) string {
	s = s.clone()
	for range 40 {
		if !slices.ContainsFunc(s.P, func(p process) bool { return !p.Dead && (p.Left > 0 || p.Holds > 0) }) && len(s.Late) == 0 {
			return ""
		}
		all := e.next(s, true)
		if len(all) == 0 {
			return "nothing happens"
		}
		for n := len(all) - 1; n >= 0; n-- { // each of what could happen, if it still can
			if again := e.next(s, true); n < len(again) {
				s = again[n]
				if what := e.wrong(s); what != "" {
					return what
				}
			}
		}
	}
	return "a waiter is not served"
}

// explore returns the first thing that is wrong within so many steps.
func (e *explorer) explore(s *state, depth int) (what string) {
	e.seen = map[string]bool{}
	level := []*state{s}
	var idle []*state // in which only a look by one of the queue goes on
	for range depth {
		var next []*state
		for _, s := range level {
			for _, c := range e.next(s, false) {
				if k := c.key(); e.seen[k] {
					continue
				} else {
					e.seen[k] = true
				}
				e.states++
				if what := e.wrong(c); what != "" {
					for ; c != nil; c = c.before {
						what += "\n" + c.key()
					}
					return what
				}
				next = append(next, c)
				if c.Lock == "" && len(c.Queue) > 0 {
					idle = append(idle, c)
				}
			}
		}
		level = next
	}
	for _, all := range [][]*state{level, idle} {
		for n := 0; n < len(all); n += 1 + len(all)/e.samples {
			if what := e.served(all[n]); what != "" {
				return what + "\n" + all[n].key()
			}
		}
	}
	return ""
}

func begin() *state {
	return &state{P: []process{{Left: 2, Gen: 1}, {Left: 1, Gen: 1}, {Left: 1, Gen: 1}}, Faults: 2}
}

func newExplorer(t *testing.T) *explorer {
	return &explorer{w: newWorld(t, 1), look: recorded(redislock.Look.Text), release: recorded(redislock.Release.Text), samples: 40}
}

// Whatever happens within some steps, there is one holder, no token without a holder keeps the lock,
// no entry is left behind, and when nothing more is lost all living waiters are served. The short form
// has 3,064 states in 4 steps, LOCKER_TEST=all 59,747 in 6, and make prove 374,889 in 7, with two
// waiters in each process.
func TestExplore(t *testing.T) {
	t.Parallel()
	e, s, depth := newExplorer(t), begin(), 4
	switch {
	case os.Getenv("LOCKER_PROVE") != "":
		depth, e.samples = 7, 1000
		for i := range s.P {
			s.P[i].Left = 2
		}
	case testserver.All():
		depth, e.samples = 6, 200
	}
	assert.Empty(t, e.explore(s, depth))
	t.Logf("%d states in %d steps", e.states, depth)
}

// The explorer finds mistakes.
func TestExploreMistakes(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(e *explorer){
		"nothing is undone":                 func(e *explorer) { e.noUndo = true },
		"copies of a request are forgotten": func(e *explorer) { e.noCopies = true },
		"copies of an earlier request are":  func(e *explorer) { e.noOldCopies = true },
		"copies are when a waiter leaves":   func(e *explorer) { e.noLeftCopies = true },
		"an offer is not passed by the script": func(e *explorer) {
			e.release = replaced(t, e.release, "if values[i] == token or entries[values[i]] then", "if values[i] == token then")
		},
		"a look takes what is held": func(e *explorer) {
			e.look = replaced(t, e.look, "elseif not value then", "else")
		},
		"a release by anybody": func(e *explorer) {
			e.release = replaced(t, e.release, "if values[i] == token or entries[values[i]] then", "if values[i] then")
		},
		"a release by the wrong entry": func(e *explorer) {
			e.release = replaced(t, e.release, "entries[values[i]] then", "(next(entries) and values[i]) then")
		},
		"a release keeps the lock": func(e *explorer) {
			e.release = replaced(t, e.release, "redis.call('DEL', lock)", "redis.call('EXISTS', lock)")
		},
		"a release leaves the entry of a waiter that has gone": func(e *explorer) {
			e.release = replaced(t, e.release, "redis.call('ZREM', queue, ARGV[k])", "")
		},
		"an offer leaves the lock to its last holder": func(e *explorer) {
			e.release = replaced(t, e.release, "redis.call('SET', locks[i], 'offer:' .. entry, 'PX', claim * 1000)", "")
		},
		"a look keeps its entry when it takes the lock": func(e *explorer) {
			e.look = replaced(t, e.look, "redis.pcall('ZREM', queue, entry)", "")
		},
		"those before it in the queue keep a look from a free lock": func(e *explorer) {
			e.look = replaced(t, e.look, "redis.call('ZREMRANGEBYRANK', queue, 0, before - 1)", "take = nil")
		},
		"the next waiter has the place of one that is undone": func(e *explorer) { e.noNewEntry = true },
		"entries are not undone":                              func(e *explorer) { e.noEntries = true },
	} {
		t.Run(name, func(t *testing.T) {
			if isRare[name] {
				testserver.Variant(t, "some fifty thousand states")
			}
			t.Parallel()
			e := newExplorer(t)
			plant(e)
			what := e.explore(begin(), 6)
			t.Logf("%s, after %d states", what, e.states)
			assert.NotEmpty(t, what)
		})
	}
}

// isRare has the mistakes that only a long exploration finds.
var isRare = map[string]bool{
	"copies of an earlier request are":                          true,
	"copies are when a waiter leaves":                           true,
	"those before it in the queue keep a look from a free lock": true,
}

func replaced(t *testing.T, text, old, by string) string {
	t.Helper()
	require.Contains(t, text, old)
	return strings.Replace(text, old, by, 1)
}
