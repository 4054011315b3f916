package mutants

import (
	"context"
	"errors"
	"time"
)

// Everywhere wraps each operation of a Fake.
func (f *Fake) Everywhere(around func(ctx context.Context, op string, do func(ctx context.Context) error) error) {
	acquire, extend, release, wait, fence := f.OnAcquire, f.OnExtend, f.OnRelease, f.OnWait, f.OnFence
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (ok bool, err error) {
		err = around(ctx, "acquire", func(ctx context.Context) error { ok, err = acquire(ctx, key, token, ttl); return err })
		return ok && err == nil, err
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (ok bool, err error) {
		err = around(ctx, "extend", func(ctx context.Context) error { ok, err = extend(ctx, key, token, ttl); return err })
		return ok && err == nil, err
	}
	f.OnRelease = func(ctx context.Context, key, token string) (ok bool, err error) {
		err = around(ctx, "release", func(ctx context.Context) error { ok, err = release(ctx, key, token); return err })
		return ok && err == nil, err
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
		err = around(ctx, "wait", func(ctx context.Context) error { deadline, err = wait(ctx, key, token, ttl); return err })
		return deadline, err
	}
	f.OnFence = func(ctx context.Context, key, token string) (n uint64, ok bool, err error) {
		err = around(ctx, "fence", func(ctx context.Context) error { n, ok, err = fence(ctx, key, token); return err })
		return n, ok && err == nil, err
	}
}

func contextMutants() []Mutant {
	return []Mutant{{
		Name: "context not passed on",
		Must: []string{"context/already-done", "fence/context"},
		May:  []string{"context/*"},
		Alter: func(f *Fake) {
			f.Everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
				if op == "wait" {
					return do(ctx)
				}
				return do(context.WithoutCancel(ctx))
			})
		},
	}, {
		Name: "another error in place of ctx's",
		Must: []string{"context/already-done", "wait/cancel", "wait/context", "fence/context"},
		May:  []string{"wait/cancel-stress", "context/*"},
		Alter: func(f *Fake) {
			f.Everywhere(func(ctx context.Context, _ string, do func(context.Context) error) error {
				err := do(ctx)
				if err != nil && ctx.Err() != nil {
					return errors.New("i/o timeout")
				}
				return err
			})
		},
	}, {
		Name: "ctx is examined only after the operation",
		Must: []string{"context/already-done"},
		Alter: func(f *Fake) {
			f.Everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
				if op == "wait" {
					return do(ctx)
				}
				return errors.Join(do(context.WithoutCancel(ctx)), ctx.Err())
			})
		},
	}, {
		Name: "success after ctx is done",
		Must: []string{"context/no-late-success"},
		Alter: func(f *Fake) {
			f.Everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
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
		Name: "false when ctx ends during the call",
		Must: []string{"context/no-late-success", "context/cancel-during-call"},
		Alter: func(f *Fake) {
			f.Everywhere(func(ctx context.Context, op string, do func(context.Context) error) error {
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
		Name: "a near deadline takes a path that does nothing",
		Must: []string{"context/future-deadline"},
		May:  []string{"context/cancel-during-call"},
		Alter: func(f *Fake) {
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 3*time.Second && ctx.Err() == nil {
					return true, nil
				}
				return acquire(ctx, key, token, ttl)
			}
		},
	}, {
		Name: "an abandoned call keeps trying, and renews its lock", RealTime: true,
		Must: []string{"context/cancel-during-call"},
		May:  []string{"context/no-leak", "context/no-late-success"},
		Alter: func(f *Fake) {
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
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
		Name: "a goroutine for each lock, until its ttl has passed",
		Must: []string{"context/no-leak"},
		May:  []string{"wait/context"},
		Alter: func(f *Fake) {
			acquire := f.OnAcquire
			f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
				ok, err := acquire(ctx, key, token, ttl)
				if ok {
					go time.Sleep(min(ttl, time.Minute))
				}
				return ok, err
			}
		},
	}}
}
