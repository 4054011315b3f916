// Package harness runs conformance checks: it calls the Lockers under test, records what each call
// returned, judges timing with allowance for a slow machine, and reports failures.
package harness

// Check is one thing that every Locker must get right.
type Check struct {
	Name   string   // group/what-must-hold
	Rules  []string // the sentences of the contract that it enforces
	Causes string   // what commonly breaks them
	Needs  Needs    // without these, the check is skipped
	Alone  bool     // run it while no other check of this run uses the backend
	Direct bool     // of several failures, begin with this one: it shows most directly what is wrong
	Run    func(e *Env)
}

// Needs is a set of requirements.
type Needs uint

const (
	NeedsNetwork         Needs = 1 << iota // Config.Addr
	NeedsWatch                             // a locker.Watcher
	NeedsWait                              // a locker.Waiter
	NeedsFence                             // a locker.Fencer
	NeedsUnsupportedWait                   // a locker.Waiter that returns errors.ErrUnsupported
	NeedsInspect                           // a locker.Inspector
	NeedsList                              // a locker.Lister
	NeedsDataLoss                          // Config.LoseData
)
