package conformance

// check is one thing that every Locker has to get right.
type check struct {
	name   string // group/what-must-hold
	rule   string // the sentence of the contract that it enforces
	causes string // what commonly breaks it
	needs  needs  // what must be there for it to be run at all
	alone  bool   // run when no other check of this run uses the backend
	run    func(e *env)
}

// needs is a set of things without which a check is skipped by name.
type needs uint

const (
	needsNetwork needs = 1 << iota // Config.Addr
	needsWatch                     // a locker.Watcher
	needsWait                      // a locker.Waiter
	needsFence                     // a locker.Fencer
	needsNoWait                    // a locker.Waiter that says errors.ErrUnsupported
)
