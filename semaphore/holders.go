package semaphore

import (
	"sync"
	"time"
)

// holders remembers which permit each token may hold. This saves requests: a token that is not
// remembered may hold any permit. The zero value is ready to use.
type holders struct {
	mu    sync.Mutex
	of    map[holder]held
	sweep int // the size at which expired entries are removed
}

type holder struct{ key, token string }

type held struct {
	permit int // or none
	until  time.Time
}

const (
	none = -1 // the token holds no permit

	// margin is how long a token is remembered after its ttl. A cleanup may release it until then.
	margin = 10 * time.Second

	minSweep = 64
)

// set remembers that token may hold a permit, and no other, for ttl.
func (h *holders) set(key, token string, permit int, ttl time.Duration) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of, h.sweep = make(map[holder]held), minSweep
	}
	// A released permit is forgotten at once. This removes permits that were lost.
	if len(h.of) >= h.sweep {
		for id, e := range h.of {
			if now.After(e.until) {
				delete(h.of, id)
			}
		}
		h.sweep = max(2*len(h.of), minSweep)
	}
	h.of[holder{key, token}] = held{permit, now.Add(ttl).Add(margin)}
}

func (h *holders) get(key, token string) (permit int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.of[holder{key, token}]
	return e.permit, ok
}

func (h *holders) forget(key, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, holder{key, token})
}

// forgetNone forgets a token that holds no permit.
func (h *holders) forgetNone(key, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.of[holder{key, token}]; ok && e.permit == none {
		delete(h.of, holder{key, token})
	}
}

// expireNone makes a token that holds no permit expire when its cleanup has ended.
func (h *holders) expireNone(key, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.of[holder{key, token}]; ok && e.permit == none {
		h.of[holder{key, token}] = held{none, time.Now().Add(margin)}
	}
}
