package pubsub

import (
	"sync"
	"time"
)

const (
	paceBatch = 10
	paceRest  = 10 * time.Millisecond
)

// Pacer passes values on in order, ten at a time and up to 1,000 a second. It is for wake-ups
// after which every listener asks the server: a pool of connections can serve ten at once, but
// not thousands.
type Pacer[T any] struct {
	// Hand is called for each value, without a lock and on one goroutine at a time. It reports
	// whether the value counts toward the limit. One that has become pointless does not.
	Hand func(T) bool

	mu     sync.Mutex
	queue  []T
	active bool // a turn is due
}

// Add puts a value in the queue.
func (p *Pacer[T]) Add(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, v)
	if !p.active {
		p.active = true
		time.AfterFunc(0, p.turn)
	}
}

func (p *Pacer[T]) turn() {
	for handed := 0; handed < paceBatch; {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.queue = nil
			p.active = handed > 0 // the next ones wait for their turn
			p.mu.Unlock()
			if handed == 0 {
				return
			}
			break
		}
		v := p.queue[0]
		clear(p.queue[:1])
		p.queue = p.queue[1:]
		p.mu.Unlock()
		if p.Hand(v) {
			handed++
		}
	}
	time.AfterFunc(paceRest, p.turn)
}
