package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A deadlineContext is no different from what context.WithDeadline gives, whether or not Done was asked for
// before it ends.
func TestDeadlineContext(t *testing.T) {
	type valueKey struct{}
	for _, tc := range []struct {
		name string
		end  func(cancel, cancelParent func())
		want error
	}{
		{"none", func(_, _ func()) {}, nil},
		{"deadline", func(_, _ func()) { time.Sleep(time.Second) }, context.DeadlineExceeded},
		{"cancel", func(cancel, _ func()) { cancel(); time.Sleep(time.Minute) }, context.Canceled},
		{"parent", func(_, cancelParent func()) { cancelParent(); time.Sleep(time.Minute) }, context.Canceled},
	} {
		for _, early := range []bool{false, true} {
			name := tc.name + ", Done asked for late"
			if early {
				name = tc.name + ", Done asked for early"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "v"))
					defer cancelParent()
					deadline := time.Now().Add(time.Second)
					ctx := withDeadline(parent, deadline)
					defer ctx.cancel()
					var derived context.Context
					if early {
						var cancel func()
						derived, cancel = context.WithTimeout(ctx, time.Hour)
						defer cancel()
					}
					got, ok := ctx.Deadline()
					require.True(t, ok)
					require.Equal(t, deadline, got)
					require.Equal(t, "v", ctx.Value(valueKey{}))
					require.NoError(t, ctx.Err())

					tc.end(ctx.cancel, cancelParent)
					synctest.Wait()
					require.Equal(t, tc.want, ctx.Err())
					require.Equal(t, "v", ctx.Value(valueKey{}))
					select {
					case <-ctx.Done():
						require.Error(t, tc.want)
					default:
						require.NoError(t, tc.want)
					}
					require.Equal(t, tc.want, ctx.Err(), "the same after Done")
					if early {
						require.Equal(t, tc.want, derived.Err())
					}
				})
			})
		}
	}
}
