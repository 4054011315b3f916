package cooldown

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
)

func TestSendMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, l, sent := t.Context(), memory.New(), 0
		send := func(context.Context) error { sent++; return nil }
		broken := errors.New("no mail server")

		mail := func(user string, send func(context.Context) error) (bool, error) {
			return SendMail(ctx, l, user, send)
		}
		called, err := mail("ann", func(context.Context) error { return broken })
		assert.True(t, called)
		assert.ErrorIs(t, err, broken)
		for _, step := range []struct {
			user   string
			called bool
			after  time.Duration
		}{
			{"ann", true, 0}, // after a failure
			{"ann", false, 0},
			{"bob", true, 0},
			{"ann", false, 10*time.Minute - time.Second},
			{"ann", true, 2 * time.Second}, // after the cool-down
		} {
			time.Sleep(step.after)
			called, err := mail(step.user, send)
			assert.NoError(t, err)
			assert.Equal(t, step.called, called, "%+v", step)
		}
		assert.Equal(t, 3, sent)
	})
}
