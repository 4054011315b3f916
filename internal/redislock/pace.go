package redislock

import (
	"math/rand/v2"
	"time"
)

const (
	// LookAgain is the time after which a waiter looks if no message has come. Its process counts
	// as gone after more than twice that.
	LookAgain = 10 * time.Second

	// lookBehind is that time for a waiter that is not the foremost of its process in its queue: the
	// foremost sees first when messages or places are lost, and then makes the others look.
	lookBehind = time.Minute

	spread    = 50                     // rests vary by one part in this many
	late      = time.Millisecond       // after a lock's expiry, the rounding of its remaining time
	afterEach = 25 * time.Millisecond  // for each entry before it in the queue,
	afterMost = 40                     // up to so many, before the foremost of a process looks
	sweepLate = 20 * time.Millisecond  // after a claim, for the queue itself to notice
	firstGap  = 25 * time.Millisecond  // between two looks of the head, twice as long each time,
	lastGap   = 250 * time.Millisecond // up to this
	deafFirst = 4 * time.Millisecond   // between two looks of the head if it cannot hear, twice as long each time,
	deafHead  = 50 * time.Millisecond  // up to this; and of others, times their rank,
	deafLast  = 500 * time.Millisecond // up to this: well within a claim
)

// Pace decides when a waiter has to look without a message. The first in the queue looks at the end
// of the holder's time, and up to four times a second, whatever the ttl. The others get a message
// when they become the first. The foremost of each process also looks a little [After] that end.
// The zero value is ready.
type Pace struct{ looks, deaf int }

// After returns the pause after a look. A waiter that cannot hear looks more often, and one that is
// not the foremost of its process less often.
func (p *Pace) After(place Place, hears, isForemost bool) time.Duration {
	rest := LookAgain
	switch {
	case place.Ticket == "": // it cannot join, for now
		rest = lastGap
	case place.Left == 0: // the lock is free, and more entries are to be passed over
		return 0
	case place.Rank == 0:
		gap := min(firstGap<<min(p.looks, 8), lastGap)
		if p.looks == 0 {
			gap = 0
		}
		p.looks++
		rest = max(place.Left+late, gap)
	case place.Unclaimed:
		rest = place.Left + late + sweepLate
	default:
		p.looks = 0
		if !isForemost {
			rest = lookBehind
		}
	}
	if !hears {
		gap := min(deafFirst<<min(p.deaf, 8), deafHead) * time.Duration(min(place.Rank+1, int64(deafLast/deafFirst)))
		rest = min(rest, gap, deafLast)
		p.deaf++
	} else {
		p.deaf = 0
	}
	return rest + rand.N(max(late, rest/spread))
}

// Told returns the pause of a waiter after the message that it is the first, and that the holder
// has left remaining.
func (p *Pace) Told(left time.Duration) time.Duration {
	p.looks = 1
	return left + late + rand.N(late)
}

// After returns the pause before the foremost waiter of a process looks if it is not the first in
// the queue. The holder has left remaining. Those before the waiter look earlier, but may have gone
// together with the holder.
func After(left time.Duration, rank int64) time.Duration {
	return left + late + time.Duration(min(rank, afterMost))*afterEach
}
