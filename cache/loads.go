package cache

import (
	"context"

	"github.com/golockers/locker/singleflight/slots"
)

// This file has the loads of a cache: slots of values as slots of bytes.

// Look implements [slots.Keeper].
func (c *Cache[V]) Look(ctx context.Context, all ...*slots.Slot[V]) error {
	asked := make([]*slots.Slot[[]byte], len(all))
	for i, s := range all {
		asked[i] = &slots.Slot[[]byte]{Key: c.config.Prefix + s.Key, Since: s.Since, Ahead: s.Ahead, Hold: s.Hold}
	}
	err := c.request("look", all, func() error { return c.store.Look(ctx, c.config.Stale, asked...) })
	if err != nil {
		return err
	}
	for i, s := range all {
		r := asked[i]
		s.Found, s.Left, s.Failed, s.Failure, s.Age = r.Found, r.Left, r.Failed, r.Failure, r.Age
		s.Version = r.Version
		s.Err = c.do("look", s.Key, func(string) (err error) {
			if r.Err == nil && r.Found {
				s.Value, err = c.decode(r.Value)
				s.Found = err == nil
				return err
			}
			return r.Err
		})
	}
	return nil
}

// Put implements [slots.Keeper].
func (c *Cache[V]) Put(ctx context.Context, all ...*slots.Slot[V]) error {
	var asked []*slots.Slot[[]byte]
	var of []*slots.Slot[V]
	for _, s := range all {
		r := &slots.Slot[[]byte]{Key: c.config.Prefix + s.Key, Version: s.Version, Failed: s.Failed, Failure: s.Failure, TTL: s.TTL}
		s.Stored = false
		s.Err = c.do("put", s.Key, func(string) (err error) {
			if s.Failed {
				return nil
			}
			if r.Value, r.TTL, err = c.encode(s.Value); s.TTL != 0 && r.TTL > 0 {
				r.TTL = min(s.TTL, longest)
				if r.TTL > 0 {
					r.TTL += c.config.Stale
				}
			}
			return err
		})
		if s.Err == nil {
			asked, of = append(asked, r), append(of, s)
		}
	}
	err := c.request("put", of, func() error { return c.store.Put(ctx, asked...) })
	if err != nil {
		return err
	}
	for i, s := range of {
		s.Stored = asked[i].Stored
		s.Err = c.do("put", s.Key, func(string) error { return asked[i].Err })
	}
	return nil
}

// request makes a request about the keys of all, if there are any.
func (c *Cache[V]) request(operation string, all []*slots.Slot[V], request func() error) error {
	if len(all) == 0 {
		return nil
	}
	return c.do(operation, all[0].Key, func(string) error { return request() })
}
