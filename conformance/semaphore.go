package conformance

import (
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/semaphore"
)

// SemaphoreConfig describes a semaphore under test.
type SemaphoreConfig struct {
	// New returns a Locker with its own connections to the backend at addr, as [Config] describes.
	New func(tb testing.TB, addr string) locker.Locker

	// Permits returns a Locker over l whose locks may have up to n holders each. New returned l.
	// The default is [semaphore.NewLocker]. Permits is called several times for each Locker and
	// with different n, since each call represents another process.
	Permits func(l locker.Locker, n int) locker.Locker

	// Addr is the backend's TCP address. If it is empty, New ignores addr, and the checks in which
	// the network fails are skipped.
	Addr string

	// Granularity is how long past its ttl the backend may keep a permit.
	Granularity time.Duration

	// Skip names checks that cannot pass on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// RunSemaphore checks a semaphore on a backend, either that of package semaphore or another. Each
// check is a subtest, which is run and reported as by [Run]. Failures quote rules from the
// documentation of package semaphore.
func RunSemaphore(t *testing.T, c SemaphoreConfig) {
	t.Helper()
	harness.Run(t, c.harness(), semaphoreChecks(c.Permits))
}

func (c SemaphoreConfig) harness() harness.Config {
	return harness.Config{New: c.New, Addr: c.Addr, Granularity: c.Granularity, Skip: c.Skip}
}

// The rules of a semaphore, from the documentation of package semaphore.
const (
	s1Limit = "S1 At most N tokens hold a permit at the same time, and N tokens can."
	s2Owner = "S2 A permit belongs to its token. Only that token extends or releases it. If that token calls " +
		"Acquire again on the same Locker, the call is an Extend."
	s3Apart  = "S3 Each permit ends when its own ttl has passed or it is released, whatever happens to the others."
	s4Order  = "S4 Waiters get permits in the order in which they called Wait."
	s5Any    = "S5 The next waiter gets whichever permit becomes free first."
	s6Leaves = "S6 A waiter that gives up leaves nothing behind. One that dies delays the others by no more than " +
		"its ttl, or 5 seconds if that is longer."
	s7Resize = "S7 If processes use a name with different N, there are never more holders than the largest N."
	s8Fence  = "S8 Each permit's fencing numbers grow."
)

// semaphoreN is the number of permits in most checks.
const semaphoreN = 3

// permits is a check's environment with clients whose locks have several holders.
type permits struct {
	*harness.Env
	over    func(l locker.Locker, n int) locker.Locker
	a, b, c *harness.Client // with semaphoreN permits
	key     string
}

func semaphoreChecks(over func(l locker.Locker, n int) locker.Locker) []harness.Check {
	if over == nil {
		over = func(l locker.Locker, n int) locker.Locker { return semaphore.NewLocker(l, n) }
	}
	type check struct {
		harness.Check
		run func(p *permits)
	}
	var all []check
	add := func(list []harness.Check, run []func(p *permits)) {
		for i, ck := range list {
			all = append(all, check{ck, run[i]})
		}
	}
	add(semaphoreBasicChecks())
	add(semaphoreWaitChecks())
	add(semaphoreFaultChecks())
	var list []harness.Check
	for _, ck := range all {
		ck.Run = func(e *harness.Env) {
			p := &permits{Env: e, over: over, key: e.Key()}
			p.a, p.b, p.c = p.with(e.A, semaphoreN), p.with(e.B, semaphoreN), p.with(e.C, semaphoreN)
			ck.run(p)
		}
		list = append(list, ck.Check)
	}
	return slices.Clip(list)
}

// with returns c as another process, with n permits for each lock.
func (p *permits) with(c *harness.Client, n int) *harness.Client {
	counted := *c
	counted.Locker = p.over(c.Locker, n)
	return &counted
}

func (p *permits) clients() []*harness.Client { return []*harness.Client{p.a, p.b, p.c} }

// fill makes c take n permits, all that are free.
func (p *permits) fill(c *harness.Client, n int, ttl time.Duration, why string) []harness.Call {
	held := make([]harness.Call, n)
	for i := range held {
		held[i] = c.Takes(p.key, p.Token(), ttl, why)
	}
	return held
}

// full requires that no client gets a permit.
func (p *permits) full(why string) {
	for _, c := range p.clients() {
		c.Blocked(p.key, why)
	}
}

// release makes the clients release what they hold.
func (p *permits) release(held ...harness.Call) (last harness.Call) {
	for _, h := range held {
		last = h.Client.Releases(p.key, h.Token, "its token holds a permit")
	}
	return last
}

// free requires that all permits can be taken. It waits for those that are released in the
// background.
func (p *permits) free(since time.Time, why string) {
	var held []harness.Call
	for range semaphoreN {
		held = append(held, p.c.TakesFree(p.key, p.Token(), harness.Long, p.began(), since, why))
	}
	p.full("C holds all permits")
	p.release(held...)
}

// began returns a time before every call of the check.
func (p *permits) began() time.Time { return time.Time{} }
