package bytecache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/golockers/locker/singleflight/slots"
)

// This file has the loads of a cache: slots of values as slots of bytes, and what the caches on Redis
// share.

// Look implements [slots.Keeper].
func (c *Cache[V]) Look(ctx context.Context, all ...*slots.Slot[V]) error {
	raw := make([]slots.Slot[[]byte], len(all))
	asked := make([]*slots.Slot[[]byte], len(all))
	for i, s := range all {
		raw[i] = slots.Slot[[]byte]{Key: s.Key, Since: s.Since, Ahead: s.Ahead, Hold: s.Hold}
		asked[i] = &raw[i]
	}
	if err := c.request(ctx, "look", asked, c.store.Look); err != nil {
		return err
	}
	for i, s := range all {
		r := asked[i]
		s.Found, s.Left, s.Failed, s.Failure, s.Age = r.Found, r.Left, r.Failed, r.Failure, r.Age
		s.Version, s.Err = r.Version, r.Err
		if r.Found && r.Err == nil {
			if s.Value, s.Err = c.config.Unmarshal(r.Value); s.Err != nil {
				var zero V
				s.Value, s.Found = zero, false
				s.Err = fmt.Errorf("unmarshal %d bytes: %w", len(r.Value), s.Err)
			}
		}
		c.complete("look", s.Key, &s.Err)
	}
	return nil
}

// Put implements [slots.Keeper].
func (c *Cache[V]) Put(ctx context.Context, all ...*slots.Slot[V]) error {
	raw := make([]slots.Slot[[]byte], len(all))
	var asked []*slots.Slot[[]byte]
	var of []*slots.Slot[V]
	for i, s := range all {
		s.Stored, s.Err = false, nil
		r := &raw[i]
		*r = slots.Slot[[]byte]{Key: s.Key, Version: s.Version, Failed: s.Failed, Failure: s.Failure, TTL: s.TTL}
		if !s.Failed {
			if r.Value, r.TTL, s.Err = c.encode(s.Value); s.Err == nil && s.TTL > 0 && r.TTL > 0 {
				r.TTL = s.TTL
			}
		}
		switch {
		case s.Err != nil:
		case r.TTL <= 0: // not to be stored
			s.Err = c.store.Delete(ctx, s.Key)
			s.Stored = s.Err == nil
		default:
			asked, of = append(asked, r), append(of, s)
			continue
		}
		c.complete("put", s.Key, &s.Err)
	}
	if len(asked) == 0 {
		return nil
	}
	if err := c.request(ctx, "put", asked, c.store.Put); err != nil {
		return err
	}
	for i, s := range of {
		s.Stored, s.Err = asked[i].Stored, asked[i].Err
		c.complete("put", s.Key, &s.Err)
	}
	return nil
}

func (c *Cache[V]) request(ctx context.Context, operation string, asked []*slots.Slot[[]byte],
	request func(context.Context, ...*slots.Slot[[]byte]) error) error {
	if len(asked) == 0 {
		return nil
	}
	err := c.err
	if err == nil {
		err = request(ctx, asked...)
	}
	c.complete(operation, asked[0].Key, &err)
	return err
}

func (c *Cache[V]) complete(operation, key string, err *error) {
	if *err != nil {
		*err = Error(c.adapter, operation, key, *err)
	}
}

// LoadKey returns the key on Redis that has the load of a key of the cache with that prefix. A
// Cluster or Ring keeps both on one server, as their hash tags are the same. It is empty if there is
// no such key, which single excludes: that all keys are on one server.
func LoadKey(prefix, key string, single bool) string {
	const mark = "!load:"
	full := prefix + key
	closed := strings.IndexByte(full, '}')
	if closed < 0 {
		return mark + "{" + full + "}"
	}
	if _, rest, ok := strings.Cut(full, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return mark + "{" + tag + "}" + full
		}
	}
	if single {
		return mark + full
	}
	return ""
}

// ErrNoLoad is the error of a slot whose key has no load.
var ErrNoLoad = fmt.Errorf("the key has no load beside it: %w", errors.ErrUnsupported)
