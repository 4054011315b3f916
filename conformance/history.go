package conformance

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"
)

// journal is what a check has done, for the reader of a failure.
type journal struct {
	mu      sync.Mutex
	begun   time.Time
	steps   []*step
	dropped int
	labels  map[string]string
	counts  map[string]int
}

// step is one line of a journal: an operation, how often it came out the same in a row, or a remark.
type step struct {
	call    call
	from    time.Time
	remark  string
	running bool
	repeats int
}

const (
	journalLength = 2000 // how many steps are kept at least, the latest ones,
	journalShown  = 30   // and how many of them are shown
)

// label gives s a short name of a kind, such as k1, and returns s.
func (j *journal) label(kind, s string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.labels == nil {
		j.labels, j.counts = make(map[string]string), make(map[string]int)
	}
	if _, ok := j.labels[s]; !ok {
		j.counts[kind]++
		j.labels[s] = fmt.Sprintf("%s%d", kind, j.counts[kind])
	}
	return s
}

// short is how s is printed.
func (j *journal) short(s string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.shortLocked(s)
}

func (j *journal) shortLocked(s string) string {
	if label, ok := j.labels[s]; ok {
		return label
	}
	for known, label := range j.labels { // a variation of a known name
		if rest, ok := strings.CutPrefix(s, known); ok {
			return label + "+" + quote(rest)
		}
	}
	return quote(s)
}

func quote(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.16q…%q (%d bytes)", s, s[len(s)-8:], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// at is a moment as the journal prints it.
func (j *journal) at(t time.Time) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.atLocked(t)
}

func (j *journal) atLocked(t time.Time) string {
	if j.begun.IsZero() {
		j.begun = t
	}
	return fmt.Sprintf("%+.3fs", t.Sub(j.begun).Seconds())
}

func (j *journal) add(remark string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.append(&step{remark: remark, from: time.Now()})
}

// forget begins again: what was done before has nothing to do with what follows.
func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.steps, j.dropped, j.begun = nil, 0, time.Time{}
}

func (j *journal) begin(c call) *step {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &step{call: c, from: time.Now(), running: true, repeats: 1}
	j.append(s)
	return s
}

func (j *journal) append(s *step) {
	if j.begun.IsZero() {
		j.begun = s.from
	}
	if len(j.steps) == 2*journalLength {
		j.steps = append(j.steps[:0:0], j.steps[journalLength:]...)
		j.dropped += journalLength
	}
	j.steps = append(j.steps, s)
}

func (j *journal) finish(s *step, c call) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.call, s.running = c, false
	if n := len(j.steps); n >= 2 && j.steps[n-1] == s && j.steps[n-2].same(s) {
		j.steps[n-2].repeats++
		j.steps[n-2].call.end = c.end
		j.steps = j.steps[:n-1]
	}
}

// show writes down what was done quietly.
func (j *journal) show(c call) {
	j.label("t", c.token)
	j.mu.Lock()
	defer j.mu.Unlock()
	if c.quiet {
		j.append(&step{call: c, from: c.start, repeats: 1})
	}
}

// same says whether o came out as s did.
func (s *step) same(o *step) bool {
	a, b := s.call, o.call
	return s.remark == "" && o.remark == "" && !s.running && !o.running && a.client == b.client && a.op == b.op &&
		a.key == b.key && a.token == b.token && a.ttl == b.ttl && a.result() == b.result()
}

// about is what has been done to key, or everything when key is empty, and the remarks.
func (j *journal) about(key string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var shown []step
	earlier, others := j.dropped, 0
	for _, s := range j.steps {
		switch n := len(shown); {
		case key != "" && s.remark == "" && s.call.key != key:
			others++
		case n > 0 && shown[n-1].same(s): // what came between was about other keys
			shown[n-1].repeats += s.repeats
			shown[n-1].call.end = s.call.end
		default:
			shown = append(shown, *s)
		}
	}
	if over := len(shown) - journalShown; over > 0 {
		earlier += over
		shown = shown[over:]
	}
	var b strings.Builder
	if earlier > 0 {
		fmt.Fprintf(&b, "… %s\n", plural(earlier, "earlier step"))
	}
	for _, s := range shown {
		fmt.Fprintf(&b, "%s  ", j.atLocked(s.from))
		if s.remark != "" {
			fmt.Fprintln(&b, s.remark)
			continue
		}
		c := s.call
		fmt.Fprintf(&b, "%s.%s(%s, %s", c.client.name, c.op, j.shortLocked(c.key), j.shortLocked(c.token))
		if c.ttl != 0 {
			fmt.Fprintf(&b, ", %v", c.ttl)
		}
		switch {
		case s.running:
			b.WriteString(") has not returned\n")
		case s.repeats > 1:
			fmt.Fprintf(&b, ") = %s, %d times until %s\n", c.result(), s.repeats, j.atLocked(c.end))
		default:
			fmt.Fprintf(&b, ") = %s after %.1fms\n", c.result(), float64(c.end.Sub(c.start).Microseconds())/1000)
		}
	}
	if others > 0 {
		fmt.Fprintf(&b, "… and %s with other keys\n", plural(others, "step"))
	}
	if b.Len() == 0 {
		return "what this check does so often that it keeps no record of it"
	}
	return b.String()
}

// shorten puts the short names of keys and tokens into what was said by others, such as errors.
func (j *journal) shorten(text string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, label := range j.labels {
		if len(name) >= len(rand.Text()) { // not one that may be a word
			text = strings.ReplaceAll(text, name, label)
		}
	}
	return text
}
