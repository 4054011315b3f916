package singleflight

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight/slots"
)

// This file has the loads of several keys.

// ErrNotLoaded is the error of a key that the source of [NewBatchLoader] returned no value for.
var ErrNotLoaded = errors.New("the source returned no value for the key")

// maxMany is how many keys are loaded together.
const maxMany = 500

// NewBatchLoader returns a Loader whose source is called once for all keys that this process loads
// together, by [Loader.LoadMany]. It gets the keys in the order of LoadMany, each once, and at most
// 500 at a time. [Loader.Load], and the refresh of a stale value, call it with one key.
//
// A key that is not in its map has the error that the source returned, or else [ErrNotLoaded]. The
// source's context has the values of the first key's, and ends as that of [NewLoader] does for all
// of them. If the source panics, each key has a [*PanicError].
func NewBatchLoader[V any](l locker.Locker, c Cache[V],
	source func(ctx context.Context, keys []string) (map[string]V, error), opts ...LoaderOption) *Loader[V] {
	if source == nil {
		return NewLoader[V](l, c, nil, opts...)
	}
	many := batchSource[V](source)
	loader := NewLoader(l, c, func(ctx context.Context, key string) (V, error) {
		s := &sourced[V]{ctx: ctx, key: key}
		many.call([]*sourced[V]{s})
		return s.v, s.err
	}, opts...)
	loader.many = many
	return loader
}

// LoadMany loads several keys, each once in the fleet, as [Loader.Load] does. The error joins those
// of keys; the map has the others. A key that is named several times counts once.
//
// LoadMany tries the locks of the missing keys at the same time, and waits for none: what another
// process loads, it waits for beside its own loads. So lists that overlap, in any order, cannot block
// each other.
//
// If the Cache is a slots.Keeper, up to 500 keys are read in one request. Those whose locks were free
// are loaded and stored together if the Loader is of [NewBatchLoader], and otherwise each by itself, so
// that none waits for the source of another. The locks take one request each, unless
// the Locker shares requests: with redisv9.WithBatching(1), 200 missing keys take about ten in all.
//
// A value that is stale is returned, and refreshed by itself.
func (l *Loader[V]) LoadMany(ctx context.Context, keys []string) (map[string]V, error) {
	values := make(map[string]V, len(keys))
	seen := make(map[string]bool, len(keys))
	var unique []string
	for _, key := range keys {
		if !seen[key] {
			seen[key] = true
			unique = append(unique, key)
		}
	}
	var errs []error
	for some := range slices.Chunk(unique, maxMany) {
		errs = append(errs, l.loadMany(ctx, some, values)...)
	}
	return values, errors.Join(errs...)
}

// loadMany loads different keys, and returns the errors of those that are not in values then.
func (l *Loader[V]) loadMany(ctx context.Context, keys []string, values map[string]V) (errs []error) {
	began := time.Now()
	missing := keys
	haveRead := false
	if l != nil && l.keeper != nil && ctx.Err() == nil && !l.lifetime.closing.Load() {
		missing, haveRead = l.readMany(ctx, keys, values)
	}
	if l != nil && l.observe != nil && haveRead {
		for _, key := range keys {
			if _, ok := values[key]; ok {
				l.observe(ctx, LoadEvent{Kind: LoadHit, Key: key, Took: time.Since(began)})
			}
		}
	}
	type result struct {
		v   V
		err error
	}
	results := make([]result, len(missing))
	b := newBatch[V](len(missing))
	var loads sync.WaitGroup
	for i, key := range missing {
		loads.Go(func() {
			r := &results[i]
			r.err = &exitError{key} // unless call returns
			r.err = recovered(key, func() (err error) {
				r.v, err = l.joinMember(ctx, key, &member[V]{batch: b, index: i}, haveRead)
				return err
			})
		})
	}
	loads.Wait()
	for i, key := range missing {
		if err := results[i].err; err == nil {
			values[key] = results[i].v
		} else if names(err, key) {
			errs = append(errs, err)
		} else {
			errs = append(errs, l.loadError(key, err))
		}
	}
	return errs
}

// readMany reads the keys in one request, and returns those that are missing. haveRead is false if it
// could not.
func (l *Loader[V]) readMany(ctx context.Context, keys []string, values map[string]V) (missing []string, haveRead bool) {
	var all []*slots.Slot[V]
	var asked []string
	for _, key := range keys {
		if l.check(key) == nil && !l.outdated.has(key) && !l.forgotten.has(key) && l.cacheBreaker.allows(key) {
			all, asked = append(all, &slots.Slot[V]{Key: l.name(key)}), append(asked, key)
		}
	}
	if len(all) == 0 {
		return keys, false
	}
	// In a flight of its own, which the caller can leave.
	var g Group[struct{}]
	_, _, err := g.call(ctx, asked[0], false, func(flight context.Context) (struct{}, error) {
		began := time.Now()
		r := l.requestOf(flight, ctx, began, &l.cacheBreaker)
		defer r.Cancel()
		err := recovered(asked[0], func() error { return l.keeper.Look(r, all...) })
		switch {
		case err == nil:
			l.cacheBreaker.succeeded(asked[0], began)
		case r.Err() == nil || time.Since(began) >= l.cacheBreaker.patience():
			_ = l.cacheBreaker.failed(r, asked[0], began, err)
		}
		return struct{}{}, err
	})
	if err != nil {
		return keys, false
	}
	for i, s := range all {
		if key := asked[i]; s.Found && s.Err == nil && !l.outdated.has(key) {
			l.refreshIfDue(ctx, key, s)
			values[key] = s.Value
		}
	}
	for _, key := range keys {
		if _, ok := values[key]; !ok {
			missing = append(missing, key)
		}
	}
	return missing, true
}

// joinMember is Load for a member of a batch. haveRead reports whether the key was read just now, and
// not found.
func (l *Loader[V]) joinMember(ctx context.Context, key string, m *member[V], haveRead bool) (v V, err error) {
	defer m.leaveUnstarted()
	o := &observation{Context: ctx, joined: m.leave}
	if l == nil || l.observe == nil {
		v, _, err = l.join(o, key, m, haveRead)
		return v, err
	}
	v, _, err = l.observed(o, key, func() (V, bool, error) { return l.join(o, key, m, haveRead) })
	return v, err
}
