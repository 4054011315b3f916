package memcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/singleflight/slots"
)

// This file has what a Cache keeps of loads. memcached changes one item at a time, so a load is in
// the place of its key's value: an item with flags of its own. While the load is under way the item
// is empty. After a failure it contains when that was, in milliseconds since 1970, a colon and the
// failure. Beside a stale value there is no such item. The version of a load is the item's cas
// number, whatever the item holds.

// loadFlags mark an item as a load: the bytes "Load".
const loadFlags = 0x4c6f6164

// Look asks for all items in one request for each server. To begin a load takes two more for each key.
func (s *cacheStore) Look(ctx context.Context, spare time.Duration, all ...*slots.Slot[[]byte]) error {
	items, err := cacheCall(ctx, s, all[0].Key, false, func(string) (map[string]*gomemcache.Item, error) {
		keys := make([]string, len(all))
		for i, slot := range all {
			keys[i] = itemOf(slot.Key)
		}
		return s.l.client.GetMulti(keys)
	})
	if err != nil {
		return err
	}
	for _, slot := range all {
		item := items[itemOf(slot.Key)]
		slot.Err = s.look(slot, spare, item)
		enough := slot.Failed || slot.Found && slot.Left >= slot.Ahead
		if slot.Err == nil && !enough && slot.Hold > 0 {
			if err := s.begin(ctx, slot, spare, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin sets the version of a slot. An item that is there already must last for as long as the load.
func (s *cacheStore) begin(ctx context.Context, slot *slots.Slot[[]byte], spare time.Duration, item *gomemcache.Item) (err error) {
	for range passes {
		expires := expiration(s.now(), slot.Hold)
		if item == nil {
			err = s.write(ctx, slot.Key, func(itemKey string) error {
				return s.l.client.Add(&gomemcache.Item{Key: itemKey, Flags: loadFlags, Expiration: expires})
			})
			if err != nil && !errors.Is(err, gomemcache.ErrNotStored) {
				return err
			}
			if item, err = s.get(ctx, slot.Key); err != nil {
				return err
			}
			if item == nil {
				continue
			}
			if slot.Err = s.look(slot, spare, item); slot.Err != nil || slot.Found || slot.Failed {
				return nil
			}
		} else {
			if _, end, err := cachedValue(item); err == nil && item.Flags == cacheFlags { // which may be stale
				expires = expiration(s.now(), max(slot.Hold, end.Sub(s.now())))
			}
			err = s.write(ctx, slot.Key, func(itemKey string) error { return s.l.client.Touch(itemKey, expires) })
			if errors.Is(err, gomemcache.ErrCacheMiss) {
				item = nil
				continue
			}
			if err != nil {
				return err
			}
			// A value that was stored meanwhile has to last for as long as it was to.
			touched := item.CasID
			if item, err = s.get(ctx, slot.Key); err != nil {
				return err
			}
			if item == nil || item.CasID != touched {
				continue
			}
			if slot.Err = s.look(slot, spare, item); slot.Err != nil || slot.Failed || slot.Found && slot.Left >= slot.Ahead {
				return nil
			}
		}
		if slot.Version = item.CasID; slot.Version == 0 {
			slot.Err = errors.Join(errNoCAS, errors.ErrUnsupported)
		}
		return nil
	}
	return errChanging
}

// look sets what an item, which may be nil, says of a slot's key.
func (s *cacheStore) look(slot *slots.Slot[[]byte], spare time.Duration, item *gomemcache.Item) error {
	if item == nil {
		return nil
	}
	b, end, err := cachedValue(item)
	if err != nil {
		return err
	}
	if s.isFresh(end, spare) {
		slot.Found, slot.Value, slot.Left = true, b, end.Sub(s.now())-spare
		return nil
	}
	if ms, failure, failed := bytes.Cut(item.Value, []byte{':'}); failed && item.Flags == loadFlags {
		at, err := strconv.ParseInt(string(ms), 10, 64)
		if err != nil {
			return fmt.Errorf("the item %q is not a load: %w", item.Key, err)
		}
		if age := max(s.now().Sub(time.UnixMilli(at)), 0); age < slot.Since {
			slot.Failed, slot.Failure, slot.Age = true, string(failure), age
			return nil
		}
	}
	return nil
}

func (s *cacheStore) Put(ctx context.Context, all ...*slots.Slot[[]byte]) error {
	for _, slot := range all {
		if slot.Failed {
			old, err := s.get(ctx, slot.Key)
			if err != nil {
				return err
			}
			if old == nil || old.CasID != slot.Version || old.Flags != loadFlags {
				continue // it is over, or there is a stale value that is worth more than the failure
			}
		}
		err := s.write(ctx, slot.Key, func(itemKey string) error {
			item := s.item(itemKey, slot.Value, slot.TTL)
			switch now := s.now(); {
			case slot.Failed:
				item.Flags, item.Expiration = loadFlags, expiration(now, slot.TTL)
				item.Value = append(append(strconv.AppendInt(nil, now.UnixMilli(), 10), ':'), slot.Failure...)
			case slot.TTL <= 0:
				item.Expiration = -1 // at once
			}
			item.CasID = slot.Version
			return s.l.client.CompareAndSwap(item)
		})
		switch {
		case err == nil:
			slot.Stored = true
		case errors.Is(err, gomemcache.ErrCASConflict), errors.Is(err, gomemcache.ErrCacheMiss),
			errors.Is(err, gomemcache.ErrNotStored):
		default:
			return err
		}
	}
	return nil
}
