package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Callers that wait for less than a load takes fill the cache all the same.
func TestLoadImpatientCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(100*time.Millisecond, "fresh"))
		served := 0
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := l.Load(ctx, "k"); err == nil {
				served++
			}
			cancel()
			time.Sleep(time.Millisecond)
		}
		require.GreaterOrEqual(t, served, 18)
		require.Equal(t, 1, p.count("source"))
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		requireIdle(t, l, b, "k")
	})
}

// The source's context ends when MaxHold has passed and no caller waits, and not before either of them.
func TestLoadSourceContextEnds(t *testing.T) {
	for _, tc := range []struct {
		name           string
		patience, ends time.Duration
		forget         bool
	}{
		{"callers leave first", time.Second, 10 * time.Second, false},
		{"MaxHold passes first", 15 * time.Second, 15 * time.Second, false},
		{"forgotten", time.Second, 5 * time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				start := time.Now()
				var ended time.Duration
				l := NewLoader(p.locker(), p.cache(), func(ctx context.Context, _ string) (string, error) {
					<-ctx.Done()
					ended = time.Since(start)
					return "", ctx.Err()
				}, WithMaxHold(10*time.Second))
				ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
				defer cancel()
				c := goLoad(ctx, l, "k")
				time.Sleep(5 * time.Second)
				if tc.forget {
					l.Forget("k")
				}
				require.Equal(t, loaded{"", context.DeadlineExceeded, tc.patience}, <-c)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, tc.ends, ended)
				requireIdle(t, l, b, "k")
			})
		})
	}
}
