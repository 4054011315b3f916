package redisv9

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

// Fewer than minMerged releases of a batch are not merged. One script makes up to maxMerged, and
// meanwhile the server does nothing else.
const (
	minMerged = 4
	maxMerged = 32
)

// merged is a command that makes several releases of a batch. It costs the server half as much as a
// command for each of them. If it fails, they are made one by one.
type merged struct {
	firstReply
	merging  *merging
	releases []*batched

	write sync.Once
	sent  []*batched // those whose callers had not left when it was written
	args  []any
}

// merging is what the merged commands of a Locker have in common.
type merging struct {
	isLoaded atomic.Bool               // the server has the script
	failedAt atomic.Pointer[time.Time] // when a script as a whole failed last; nil: never
}

// mergingPause is how long nothing is merged after a script has failed, as it does every time if
// the locks are in different slots.
const mergingPause = 10 * time.Second

// failedAlone ends the pause if err shows that a release by a command of its own was not permitted:
// the script then failed because of this lock, and will not fail without it. Otherwise one such lock,
// in ten seconds, would keep all the others from being merged.
func (g *merging) failedAlone(err error) {
	if err != nil && redis.HasErrorPrefix(err, "NOPERM") {
		g.failedAt.Store(nil)
	}
}

// merge returns the commands of a batch, and those among them that are merged. These come first,
// since other calls may wait for their locks.
func (g *merging) merge(ctx context.Context, batch []*batched) (cmds []redis.Cmder, all []*merged) {
	var releases []*batched
	for _, c := range batch {
		if c.lock != "" {
			releases = append(releases, c)
		}
	}
	cmds = make([]redis.Cmder, 0, len(batch))
	failedAt := g.failedAt.Load()
	mayMerge := len(releases) >= minMerged && (failedAt == nil || time.Since(*failedAt) >= mergingPause)
	if mayMerge {
		for part := range slices.Chunk(releases, maxMerged) {
			m := &merged{merging: g, releases: part}
			m.Cmder = redis.NewCmd(ctx, "evalsha", redislock.Releases.Hash)
			cmds, all = append(cmds, m), append(all, m)
		}
	}
	for _, c := range batch {
		if mayMerge && c.lock != "" {
			continue
		}
		c.complete()
		cmds = append(cmds, c)
	}
	return cmds, all
}

// complete builds the command of a release that goes without others. It does so once: a hook
// may look at the command from then on, even when its pipeline has ended.
func (c *batched) complete() {
	if c.lock != "" {
		c.Cmder = releaseCommand(c.sending, c.lock, c.queue)
		c.lock = ""
	}
}

// Args returns the command's arguments. See [batched.Args].
func (m *merged) Args() []any {
	m.write.Do(func() {
		for _, c := range m.releases {
			if c.state.CompareAndSwap(waiting, underWay) {
				m.sent = append(m.sent, c)
			}
		}
		if len(m.sent) == 0 {
			m.args = leftOut
			return
		}
		n := len(m.sent)
		m.args = make([]any, 3+3*n)
		m.args[0], m.args[1], m.args[2] = "evalsha", redislock.Releases.Hash, 2*n
		if !m.merging.isLoaded.Load() {
			m.args[0], m.args[1] = "eval", redislock.Releases.Text
		}
		for i, c := range m.sent {
			m.args[3+i], m.args[3+n+i], m.args[3+2*n+i] = c.lock, c.queue, c.sending
		}
	})
	return m.args
}

// finish gives the releases their replies. A release that got an error is made again by its caller,
// with a command of its own.
func (m *merged) finish() {
	m.write.Do(func() { m.args = leftOut }) // if it was not written; a hook may still look at it
	if !m.answered || len(m.sent) == 0 {
		return
	}
	replies, err := m.Cmder.(*redis.Cmd).Slice()
	if err == nil && len(replies) != len(m.sent) {
		err = fmt.Errorf("unexpected reply to %d releases: %v", len(m.sent), replies)
	}
	switch {
	case err == nil:
		m.merging.isLoaded.Store(true)
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		m.merging.isLoaded.Store(false)
	default:
		now := time.Now()
		m.merging.failedAt.Store(&now)
	}
	for i, c := range m.sent {
		failed := err
		if err == nil {
			failed, _ = replies[i].(error)
		}
		if failed != nil {
			c.Cmder.SetErr(failed)
			c.alone, c.wasMerged = true, true
			if m.Cmder.Err() != nil {
				c.sending.Undo() // the script did nothing, so the request that follows is the first
			}
			continue
		}
		c.Cmder.(*redis.Cmd).SetVal(replies[i])
		c.answered = true
	}
}
