package cohort

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxUnreleased limits the locks that Close tries to release again.
const maxUnreleased = 4096

// unreleased holds the locks that lingered and whose release got no answer, until a later release
// gets one or the lock must have expired. A cleanup repeats the release for a few seconds, and
// Close repeats it once more.
type unreleased struct {
	mu      sync.Mutex
	tenures map[*tenure]struct{}
}

// add adds t, whose shard's mutex the caller must hold.
func (u *unreleased) add(t *tenure) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.tenures) >= maxUnreleased {
		return
	}
	if u.tenures == nil {
		u.tenures = make(map[*tenure]struct{})
	}
	u.tenures[t] = struct{}{}
	time.AfterFunc(t.longest, func() { u.remove(t) })
}

func (u *unreleased) remove(t *tenure) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.tenures, t)
}

func (u *unreleased) all() []*tenure {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.tenures))
}

// releaseAgain repeats releases that have failed, and returns the first error.
func (l *Locker) releaseAgain(ctx context.Context, ts []*tenure) (first error) {
	for _, t := range ts {
		_, err := l.inner.Release(ctx, t.record.key, t.token)
		switch {
		case err == nil:
			l.unreleased.remove(t)
		case first == nil:
			first = fmt.Errorf("release %q: %w", t.record.key, err)
		}
	}
	return first
}
