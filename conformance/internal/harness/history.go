package harness

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"
)

// history is what a check has done, for the reader of a failure.
type history struct {
	mu      sync.Mutex
	begun   time.Time
	steps   []*step
	dropped int
	labels  map[string]string
	counts  map[string]int
}

// step is a line of a history: a call, repeated with the same result or not, or a remark.
type step struct {
	call    Call
	from    time.Time
	remark  string
	running bool
	repeats int
}

const (
	historyLength = 2000 // at least so many of the latest steps are kept,
	historyShown  = 30   // and so many of them are printed
)

// label gives s a short name of a kind, such as k1, and returns s.
func (h *history) label(kind, s string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.labels == nil {
		h.labels, h.counts = make(map[string]string), make(map[string]int)
	}
	if _, ok := h.labels[s]; !ok {
		h.counts[kind]++
		h.labels[s] = fmt.Sprintf("%s%d", kind, h.counts[kind])
	}
	return s
}

// short returns s as it is printed.
func (h *history) short(s string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shortLocked(s)
}

func (h *history) shortLocked(s string) string {
	if label, ok := h.labels[s]; ok {
		return label
	}
	for known, label := range h.labels { // a known name with something appended
		if rest, ok := strings.CutPrefix(s, known); ok {
			return label + "+" + Quote(rest)
		}
	}
	return Quote(s)
}

func Quote(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.16q…%q (%d bytes)", s, s[len(s)-8:], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// at returns t as it is printed: relative to the first step.
func (h *history) at(t time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.atLocked(t)
}

func (h *history) atLocked(t time.Time) string {
	if h.begun.IsZero() {
		h.begun = t
	}
	return fmt.Sprintf("%+.3fs", t.Sub(h.begun).Seconds())
}

func (h *history) add(remark string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.append(&step{remark: remark, from: time.Now()})
}

// forget drops all steps.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps, h.dropped, h.begun = nil, 0, time.Time{}
}

func (h *history) begin(c Call) *step {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &step{call: c, from: time.Now(), running: true, repeats: 1}
	h.append(s)
	return s
}

func (h *history) append(s *step) {
	if h.begun.IsZero() {
		h.begun = s.from
	}
	if len(h.steps) == 2*historyLength {
		h.steps = append(h.steps[:0:0], h.steps[historyLength:]...)
		h.dropped += historyLength
	}
	h.steps = append(h.steps, s)
}

func (h *history) finish(s *step, c Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.call, s.running = c, false
	if n := len(h.steps); n >= 2 && h.steps[n-1] == s && h.steps[n-2].same(s) {
		h.steps[n-2].repeats++
		h.steps[n-2].call.End = c.End
		h.steps = h.steps[:n-1]
	}
}

// show adds a quiet call.
func (h *history) show(c Call) {
	if c.Token != "" {
		h.label("t", c.Token)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Quiet {
		h.append(&step{call: c, from: c.Start, repeats: 1})
	}
}

// same reports whether o is the same call as s with the same result.
func (s *step) same(o *step) bool {
	a, b := s.call, o.call
	return s.remark == "" && o.remark == "" && !s.running && !o.running && a.Client == b.Client && a.Op == b.Op &&
		a.Key == b.Key && a.Token == b.Token && a.TTL == b.TTL && a.Result() == b.Result()
}

// about returns the steps that concern key, or all if key is empty, and the remarks.
func (h *history) about(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var shown []step
	earlier, others := h.dropped, 0
	for _, s := range h.steps {
		switch n := len(shown); {
		case key != "" && s.remark == "" && s.call.Key != key:
			others++
		case n > 0 && shown[n-1].same(s): // the steps between concern other keys
			shown[n-1].repeats += s.repeats
			shown[n-1].call.End = s.call.End
		default:
			shown = append(shown, *s)
		}
	}
	if over := len(shown) - historyShown; over > 0 {
		earlier += over
		shown = shown[over:]
	}
	var b strings.Builder
	if earlier > 0 {
		fmt.Fprintf(&b, "… %s\n", Plural(earlier, "earlier step"))
	}
	for _, s := range shown {
		fmt.Fprintf(&b, "%s  ", h.atLocked(s.from))
		if s.remark != "" {
			fmt.Fprintln(&b, s.remark)
			continue
		}
		c := s.call
		fmt.Fprintf(&b, "%s.%s(%s", c.Client.Name, c.Op, h.shortLocked(c.Key))
		if c.Token != "" {
			fmt.Fprintf(&b, ", %s", h.shortLocked(c.Token))
		}
		if c.TTL != 0 {
			fmt.Fprintf(&b, ", %v", c.TTL)
		}
		switch {
		case s.running:
			b.WriteString(") has not returned\n")
		case s.repeats > 1:
			fmt.Fprintf(&b, ") = %s, %d times until %s\n", c.Result(), s.repeats, h.atLocked(c.End))
		default:
			fmt.Fprintf(&b, ") = %s after %.1fms\n", c.Result(), float64(c.End.Sub(c.Start).Microseconds())/1000)
		}
	}
	if others > 0 {
		fmt.Fprintf(&b, "… and %s with other keys\n", Plural(others, "step"))
	}
	if b.Len() == 0 {
		return "the calls of this check are too many to be recorded"
	}
	return b.String()
}

// shorten replaces keys and tokens by their short names in a text such as an error.
func (h *history) shorten(text string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, label := range h.labels {
		if len(name) >= len(rand.Text()) { // not if it may be a word
			text = strings.ReplaceAll(text, name, label)
		}
	}
	return text
}

// Plural returns n things: one request, 2 requests.
func Plural(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
