package mutants

import (
	"context"
	"time"
)

// waitAlone is a lock whose waiters have no line: each of them polls.
type waitAlone struct{ redisFull }

func (l waitAlone) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	l.queue = &localQueue{m: make(map[string][]chan struct{})}
	return l.redisFull.Wait(ctx, key, token, ttl)
}

func lineMutants() []Mutant {
	return []Mutant{{
		Name:   "waiters of one client poll, each by itself",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) waitAlone { return waitAlone{l} }),
		Must:   []string{"fault/line-cost"},
		May:    []string{"fault/*"},
	}}
}
