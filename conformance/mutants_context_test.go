package conformance

import (
	"context"
	"errors"
	"time"
)

// everywhere puts something around each operation of a fake.
func (f *fake) everywhere(around func(ctx context.Context, op string, do func(ctx context.Context) error) error) {
	acquire, extend, release, wait, fence := f.acquire, f.extend, f.release, f.wait, f.fence
	f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (ok bool, err error) {
		err = around(ctx, "acquire", func(ctx context.Context) error { ok, err = acquire(ctx, key, token, ttl); return err })
		return ok && err == nil, err
	}
	f.extend = func(ctx context.Context, key, token string, ttl time.Duration) (ok bool, err error) {
		err = around(ctx, "extend", func(ctx context.Context) error { ok, err = extend(ctx, key, token, ttl); return err })
		return ok && err == nil, err
	}
	f.release = func(ctx context.Context, key, token string) (ok bool, err error) {
		err = around(ctx, "release", func(ctx context.Context) error { ok, err = release(ctx, key, token); return err })
		return ok && err == nil, err
	}
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
		err = around(ctx, "wait", func(ctx context.Context) error { deadline, err = wait(ctx, key, token, ttl); return err })
		return deadline, err
	}
	f.fence = func(ctx context.Context, key, token string) (n uint64, ok bool, err error) {
		err = around(ctx, "fence", func(ctx context.Context) error { n, ok, err = fence(ctx, key, token); return err })
		return n, ok && err == nil, err
	}
}

var contextMutants = []mutant{{
	name: "context not passed on",
	must: []string{"context/done-before", "fence/context"},
	may:  []string{"context/*"},
	alter: func(f *fake) {
		f.everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "wait" {
				return do(ctx)
			}
			return do(context.WithoutCancel(ctx))
		})
	},
}, {
	name: "an error of its own in place of ctx's",
	must: []string{"context/done-before", "wait/cancelled", "wait/context", "fence/context"},
	may:  []string{"wait/storm", "context/*"},
	alter: func(f *fake) {
		f.everywhere(func(ctx context.Context, _ string, do func(context.Context) error) error {
			err := do(ctx)
			if err != nil && ctx.Err() != nil {
				return errors.New("i/o timeout")
			}
			return err
		})
	},
}, {
	name: "a context that is done is looked at too late: it has happened",
	must: []string{"context/done-before"},
	alter: func(f *fake) {
		f.everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "wait" {
				return do(ctx)
			}
			return errors.Join(do(context.WithoutCancel(ctx)), ctx.Err())
		})
	},
}, {
	name: "success after ctx is done",
	must: []string{"context/no-late-success"},
	alter: func(f *fake) {
		f.everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "wait" {
				return do(ctx)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			time.Sleep(4 * time.Millisecond)
			return do(context.WithoutCancel(ctx))
		})
	},
}, {
	name: "false when ctx ends during the call",
	must: []string{"context/no-late-success", "context/cancelled-midway"},
	alter: func(f *fake) {
		f.everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "wait" || ctx.Err() != nil {
				return do(ctx)
			}
			if linger(ctx, 4*time.Millisecond) != nil {
				return nil
			}
			return do(ctx)
		})
	},
}, {
	name: "a near deadline takes a path that does nothing",
	must: []string{"context/deadline-ahead"},
	may:  []string{"context/cancelled-midway"},
	alter: func(f *fake) {
		acquire := f.acquire
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 3*time.Second && ctx.Err() == nil {
				return true, nil
			}
			return acquire(ctx, key, token, ttl)
		}
	},
}, {
	name: "a call that is left behind keeps trying, and renews what it has",
	must: []string{"context/cancelled-midway"},
	may:  []string{"context/nothing-left", "context/no-late-success"},
	alter: func(f *fake) {
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			pause()
			if ctx.Err() == nil {
				return f.store.acquire(key, token, ttl), nil
			}
			go func() {
				for range 600 {
					f.store.acquire(key, token, 10*ttl)
					time.Sleep(50 * time.Millisecond)
				}
			}()
			return false, ctx.Err()
		}
	},
}, {
	name: "a goroutine for each lock, until its ttl has passed",
	must: []string{"context/nothing-left"},
	may:  []string{"wait/context"},
	alter: func(f *fake) {
		acquire := f.acquire
		f.acquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := acquire(ctx, key, token, ttl)
			if ok {
				go time.Sleep(min(ttl, time.Minute))
			}
			return ok, err
		}
	},
}}
