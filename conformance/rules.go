package conformance

// The contract of package locker, sentence by sentence, as its documentation states it: C for all
// of [locker.Locker], A, E and R for Acquire, Extend and Release, W for [locker.Watcher], Q for the
// queue of [locker.Waiter], F for [locker.Fencer], I for [locker.Inspector], L for [locker.Lister].
// Each sentence begins with its number, by which failures refer to it. TestRules compares them with
// locker.go and inspect.go.
const (
	c1OneAttempt = "C1 One attempt. No method waits for a holder, sleeps, or retries on contention."
	c1OwnSteps   = "C1 It may repeat its own steps up to three times when the value changed under it, and then " +
		"returns an error."
	c1GivesWay = "C1 If the holder is a process that keeps the lock for its next caller, see C7, Acquire may wait " +
		"for that process's answer, for a bounded time."

	c2Outcomes = "C2 Three outcomes. (true, nil): done. (false, nil): certainly not done. An error: unknown, the " +
		"operation may or may not have happened, or may happen yet."
	c2SentTwice = "C2 When the client library may have sent a request twice, what the second one finds is not the " +
		"answer: a Release that finds nothing is true or an error, and so is an Acquire that finds another holder " +
		"when the first request may have taken the lock."

	c3NeverEarly = "C3 Never early. After Acquire or Extend returned true, no other token acquires the lock before " +
		"ttl has passed since that call started, unless this token releases it."

	c4Late = "C4 Late by little. ttl plus the backend's granularity after the call returned, the lock is free."
	c4Unit = "C4 The granularity includes the least ttl that the backend keeps, if it has one."

	c5SameToken = "C5 Same token. Acquire by the token that holds the lock is an Extend, so an attempt that is " +
		"repeated after a lost reply succeeds."

	c6Extend   = "C6 Extend works only when the token holds the lock."
	c6Replaces = "C6 It replaces the remaining time, longer or shorter, and never re-creates a lock that is gone."

	c7Release = "C7 Release works only when the token holds the lock, as one atomic step; the lock is free at once."
	c7Kept    = "C7 A Locker may keep it for the next caller of its process, if an attempt by any other " +
		"process still gets it."

	c8Exact = "C8 Exact. Keys and tokens compare byte for byte, and two names never share a lock."

	c9Before = "C9 Context. When ctx is done before the call, the method returns ctx's error and nothing happens."
	c9During = "C9 When ctx ends during the call, the method returns ctx's error within one I/O timeout of the " +
		"client, and promptly when ctx's deadline is nearer than that; from then on it starts nothing more for " +
		"that call, except to undo it."
	c9RollBack = "C9 A rollback may use a context of its own that has not ended, bounded in time."
	c9InOrder  = "C9 An Extend or a Release of that token on the same Locker waits behind what is still under way."

	c10Faults = "C10 Faults are errors. A backend that is down, hung, read-only or out of memory is an error that " +
		"wraps its cause, never (false, nil), never a success and never a panic."

	c11Foreign = "C11 Foreign values. A value that the Locker recognizes as not its own is an error and is " +
		"left alone."

	c12AnyName = "C12 Any name works, and any token, of 1 to 1,024 bytes."

	c13AnyTTL = "C13 Any ttl from a millisecond. Rounding is up only, to the backend's unit and to the least ttl " +
		"that it keeps; what the backend cannot express is ErrInvalidTTL, never a lock without expiry, never one " +
		"that is gone at once."

	c14NothingLeft = "C14 Nothing left behind. After release or expiry the backend keeps nothing for a key that does " +
		"not expire by itself, and the Locker keeps no goroutine, timer or map entry for it."
)

const (
	aAcquire = "A1 Acquire takes the lock for token if it is free, in one attempt. False means that another token " +
		"holds the lock, or is next in the queue for it on this Locker. When token holds the lock already, Acquire " +
		"acts as Extend."
	eExtend = "E1 Extend sets the remaining time of a lock that token holds to ttl. False means that token does not " +
		"hold the lock."
	rRelease = "R1 Release frees a lock that token holds. False means that token does not hold the lock."
)

const (
	w1Watch = "W1 Watcher is a Locker that can tell when a lock may have become free. Watch returns a channel that " +
		"gets a value when the lock of key may have become free."
	w2Live = "W2 It returns once the subscription is live, so a caller that subscribes and then tries again misses " +
		"no release."
	w3WakesAll = "W3 Every release wakes all watchers of its key."
	w4Channel  = "W4 The channel has room for one wake-up and is never closed; wake-ups are hints: they coalesce, may " +
		"be spurious, and an expiry need not be signaled."
	w5Reconnects = "W5 When the subscription breaks, the Locker subscribes again, and the channel then gets a wake-up " +
		"if a release may have been missed."
	w6Resumed = "W6 A subscription that resumes and has missed nothing need not wake its watchers."
	w7Hint    = "W7 A subscription only shortens the pauses between attempts: if it cannot be established or is " +
		"silent, Lock still gets the lock as soon as polling would."
	w8Ends        = "W8 The subscription ends with ctx."
	w9Unsupported = "W9 An error that wraps errors.ErrUnsupported means that this key cannot be watched."
)

const (
	q1FIFO = "Q1 Waiter is a Locker that keeps a queue, in which processes take turns. The callers of a process " +
		"that wait for a lock stand in a line, first come, first served, and only the first of them has a place " +
		"in the queue."
	q1Turns = "Q1 Places are served in the order in which they were taken, and the next in line takes a new one, so " +
		"a process with a thousand callers does not keep one with a single caller waiting. A line belongs to a " +
		"Locker: two Lockers of one process are two processes here."
	q2Wait = "Q2 Wait takes the lock as Acquire does when it is free, and otherwise joins the line and returns when " +
		"token holds the lock or ctx is done."
	q3Handoff  = "Q3 A release passes the lock to the head of the queue, for the ttl of that Wait."
	q4Deadline = "Q4 The deadline is on this process's monotonic clock and is never after the real expiry, however " +
		"late Wait learns that it holds the lock."
	q4Shared = "Q4 An error of the backend is the error of everyone in the line."
	q5Place  = "Q5 A place is kept when the holder extends the lock or vanishes, when other attempts are refused, and " +
		"when Wait goes on after its connection broke."
	q6Queued = "Q6 A waiter's token does not hold the lock: Extend, Release and Fence return false and leave its place " +
		"alone."
	q7Dead = "Q7 A place whose process has died costs the others at most its ttl or the time that the adapter lets " +
		"it claim the lock, and a waiter that has left costs nothing while its process lives."
	q8Looks = "Q8 Wait does not depend on a notification: it also looks at the lock from time to time."
	q9Leave = "Q9 When ctx ends after the lock was found to be held, whether or not token had joined the line by " +
		"then, Wait leaves it, and the error wraps both ctx's error and ErrHeld; a lock that arrives meanwhile is " +
		"released or passed on. That may go on in the background, so the next attempt needs another token: this " +
		"one may still be released."
	q10NotHeld     = "Q10 An error without ErrHeld, like one from Acquire, says nothing about who holds the lock."
	q11Unsupported = "Q11 An error that wraps errors.ErrUnsupported means that there is no queue for this key, and that " +
		"nothing happened."
)

const (
	f1Monotonic = "F1 Fencer is a Locker that can mint fencing numbers. Fence returns a number greater than every " +
		"number minted for key before, by anyone, across releases, expiries and re-acquisitions."
	f2Holder = "F2 ok is false if token does not hold the lock, even if it waits for it."
	f3Lost   = "F3 If the backend can lose the last number, the next one starts from a clock that has advanced " +
		"since, as the adapter documents."
	f4Range       = "F4 Numbers are less than 2^63."
	f5Unsupported = "F5 An error that wraps errors.ErrUnsupported means that this key has no fencing numbers."
)

const (
	i1Reports = "I1 Inspector is a Locker that reports who holds a lock."
	i2Tools   = "I2 It is for operators and tools: another process may change the lock before the answer arrives, so " +
		"do not use it to decide whether to acquire the lock."
	i3ChangesNothing = "I3 Inspect reports the state of the lock of key and changes nothing."
	i4Foreign        = "I4 A value that the Locker recognizes as not its own is an error, as in C11."
	i5Error          = "I5 With an error the Info has only the key."
)

const (
	l1Held = "L1 Lister is a Locker that enumerates the locks that are held."
	l2Once = "L2 List yields the locks that are held and whose keys begin with prefix, each once and in no " +
		"particular order."
	l3Meanwhile = "L3 A lock that is acquired or released meanwhile may be left out."
	l4Errors    = "L4 An error that comes with the Info of a key concerns that key alone, and the iteration goes on; " +
		"an error without a key ends it."
	l5Unsupported = "L5 The error wraps errors.ErrUnsupported if this server cannot enumerate."
	l6Body        = "L6 The body of the loop may call the Locker, for instance to release what is listed."
)
