// Package lincheck checks that histories of a Locker are linearizable: that its answers can be
// explained by operations that took effect one at a time, each between its call and its return. An
// operation of unknown outcome may take effect at any time after its call, or never.
package lincheck

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what an operation does.
type Kind uint8

const (
	Acquire Kind = iota
	Extend
	Release
	Fence
	Wait
	expire // the lock may expire: not an operation, but part of the model
)

func (k Kind) String() string {
	return [...]string{"Acquire", "Extend", "Release", "Fence", "Wait", "expire"}[k]
}

// Outcome is the answer to an operation.
type Outcome uint8

const (
	No Outcome = iota // certainly not done
	Yes
	Unknown
)

func (o Outcome) String() string { return [...]string{"no", "yes", "unknown"}[o] }

// Op is an operation on one key, as its caller saw it.
type Op struct {
	Client       int
	Kind         Kind
	Token        string
	TTL          time.Duration // of Acquire, Extend and Wait
	Call, Return time.Duration // since the history began
	Outcome      Outcome
	Fence        uint64
	Until        time.Duration // of a Wait that was served: its deadline
	Hasty        bool          // it had little time
}

// state is that of one lock.
type state struct {
	holder string // empty: free
	grant  int    // the operation that last set the time that remains
	fence  uint64
	late   bool // it is free because it has expired, which the backend may not know yet
}

type input struct {
	kind      Kind
	token     string
	id        int
	mayRefuse bool // a Wait overlaps with it, and may be next in the queue
	mayBeLate bool
}

type output struct {
	outcome Outcome
	fence   uint64
}

// step returns the states in which an operation may leave a lock, none if its answer is wrong.
func step(s state, in input, out output) []state {
	held := s.holder == in.token
	var can bool
	done := s
	switch in.kind {
	case Acquire, Wait:
		can = held || s.holder == ""
		done.holder, done.grant, done.late = in.token, in.id, false
	case Extend:
		can, done.grant = held, in.id
	case Release:
		can, done.holder, done.grant = held, "", 0
	case Fence:
		can, done.fence = held, out.fence
		if out.outcome == Yes && out.fence <= s.fence {
			return nil
		}
	case expire:
		if s.grant == in.id {
			return []state{{fence: s.fence, late: true}}
		}
		return []state{s}
	}
	switch {
	case out.outcome == Yes && can:
		return []state{done}
	case out.outcome == Yes:
		return nil
	case out.outcome == No && can && in.kind != Wait && !in.mayRefuse && !(s.late && in.mayBeLate):
		return nil
	case out.outcome == No, !can, in.kind == Fence:
		return []state{s}
	}
	return []state{s, done}
}

// Verdict is what [Check] found out about a history.
type Verdict = porcupine.CheckResult

// Leniency is what a Locker may do that is not linearizable, and does no harm.
type Leniency struct {
	// Late means that a token learns of the end of its lock before the backend does, which then still
	// refuses others: a Locker that wraps another one knows the deadline, and not the expiry.
	Late bool

	// Twice means that an Acquire may begin again after it took the lock, as when it came too late to
	// be of use. In between, its token may be released or refused by others.
	Twice bool

	// Undoes means that an Acquire of unknown outcome may be undone, whenever that succeeds. Only
	// what it did itself is: a lock that the token has taken again stays.
	Undoes bool

	// Leaves means that a Wait that gives up leaves the queue in the background. After it has
	// returned it may still be served, and refuse others until its token is released.
	Leaves bool
}

// Check reports whether a history of one key is linearizable. A ttl that ends within the history
// may end at any time after it: how late is not judged here. Check gives up after timeout.
func Check(history []Op, but Leniency, timeout time.Duration) Verdict {
	return porcupine.CheckOperationsTimeout(model().ToModel(), operations(history, but), timeout)
}

func model() *porcupine.NondeterministicModel {
	return &porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, out any) []any {
			var next []any
			for _, s := range step(s.(state), in.(input), out.(output)) {
				next = append(next, s)
			}
			return next
		},
	}
}

// operations adds to a history what the checker has to know: where locks may expire, that an
// operation of unknown outcome never ends, and that a Wait that gives up may release its token, in
// case it was served.
func operations(history []Op, but Leniency) (list []porcupine.Operation) {
	if but.Leaves { // until it has left, it may take the lock, and release it
		history = slices.Clone(history)
		for i, op := range history {
			if op.Kind == Wait && op.Outcome == No {
				history[i].Outcome = Unknown
			}
		}
	}
	var end time.Duration
	for _, op := range history {
		end = max(end, op.Call, op.Return)
	}
	for i, op := range history {
		id := i + 1
		in := input{op.Kind, op.Token, id, op.Kind == Acquire && overlaps(history, op), but.Late && op.Kind == Acquire}
		returned := int64(op.Return)
		if op.Outcome == Unknown {
			returned = math.MaxInt64
		}
		list = append(list, porcupine.Operation{
			ClientId: i, Input: in, Call: int64(op.Call), Output: output{op.Outcome, op.Fence}, Return: returned,
		})
		if op.Kind == Wait && op.Outcome != Yes {
			list = append(list, porcupine.Operation{
				ClientId: i, Input: input{kind: Release, token: op.Token}, Call: int64(op.Call),
				Output: output{outcome: Unknown}, Return: returned,
			})
		}
		expires := func(id int, at time.Duration) {
			if at <= end {
				list = append(list, porcupine.Operation{
					ClientId: i, Input: input{kind: expire, id: id}, Call: int64(at), Return: math.MaxInt64, Output: output{},
				})
			}
		}
		if but.Twice && op.Kind == Acquire {
			list = append(list, porcupine.Operation{
				ClientId: i, Input: input{kind: Acquire, token: op.Token, id: -id}, Call: int64(op.Call),
				Output: output{outcome: Unknown}, Return: returned,
			})
			expires(-id, op.Call+op.TTL)
		}
		switch {
		case op.TTL == 0 || op.Outcome == No:
		case op.Until > 0:
			expires(id, op.Until)
		case but.Undoes && op.Kind == Acquire && op.Outcome == Unknown:
			expires(id, op.Call)
		default:
			expires(id, op.Call+op.TTL)
		}
	}
	return list
}

// overlaps reports whether a Wait was under way during op, or may have been.
func overlaps(history []Op, op Op) bool {
	for _, w := range history {
		if w.Kind == Wait && w.Call < op.Return && (w.Return > op.Call || w.Outcome == Unknown) {
			return true
		}
	}
	return false
}

// String returns the operation on one line, for reports.
func (op Op) String() string {
	s := fmt.Sprintf("%9.3fms to %9.3fms  client %d  %v(%s", float64(op.Call)/1e6, float64(op.Return)/1e6, op.Client,
		op.Kind, op.Token)
	if op.TTL > 0 {
		s += ", " + op.TTL.String()
	}
	s += ") = " + op.Outcome.String()
	if op.Fence > 0 {
		s += fmt.Sprint(" ", op.Fence)
	}
	if op.Until > 0 {
		s += fmt.Sprintf(" until %.3fms", float64(op.Until)/1e6)
	}
	return s
}
