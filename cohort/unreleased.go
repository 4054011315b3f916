package cohort

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxUnreleased is how many locks Close tries to release again.
const maxUnreleased = 4096

// unreleased are the locks that lingered and whose release had no answer, until a later one has, or
// the lock must have expired. A cleanup repeats the release for a few seconds, and so does Close.
type unreleased struct {
	mu      sync.Mutex
	tenures map[*tenure]struct{}
}

// add needs the shard's mutex.
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

// releaseAgain releases locks whose release has failed before. It returns the first error.
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
