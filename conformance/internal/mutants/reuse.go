package mutants

import (
	"context"
	"sync"
)

// What a Wait without an answer leaves behind, and a lock that releases it although it is in use again.

// undoing holds the tokens that are released because their Waits had no answer.
type undoing struct{ m sync.Map }

type undo struct {
	turn      chan struct{} // has a value during a release, and guards isStopped
	isStopped bool
}

// begin announces the releases of a token.
func (u *undoing) begin(key, token string) *undo {
	d := &undo{turn: make(chan struct{}, 1)}
	u.m.Store([2]string{key, token}, d)
	return d
}

// release runs f unless the token is in use again.
func (d *undo) release(f func() bool) bool {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	return d.isStopped || f()
}

// stop ends the releases of a token that is about to be used.
func (u *undoing) stop(ctx context.Context, key, token string) error {
	d, ok := u.m.LoadAndDelete([2]string{key, token})
	if !ok {
		return nil
	}
	select {
	case d.(*undo).turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	d.(*undo).isStopped = true
	<-d.(*undo).turn
	return nil
}

func reuseMutants() []Mutant {
	return []Mutant{{
		Name:   "a Wait without an answer is undone although its token is in use again",
		Only:   []string{"fault/*"},
		Config: OnRedisFull(func(l redisFull) redisFull { l.isForgetful = true; return l }),
		Must:   []string{"fault/wait-then-acquire"},
	}}
}
