package cooldown

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
)

func TestSendMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, l, sent := t.Context(), memory.New(), 0
		send := func(context.Context) error { sent++; return nil }
		broken := errors.New("no mail server")

		assert.ErrorIs(t, SendMail(ctx, l, "ann", func(context.Context) error { return broken }), broken)
		assert.NoError(t, SendMail(ctx, l, "ann", send), "after a failure")
		assert.ErrorIs(t, SendMail(ctx, l, "ann", send), locker.ErrHeld)
		assert.NoError(t, SendMail(ctx, l, "bob", send), "another user")
		time.Sleep(10*time.Minute - time.Second)
		assert.ErrorIs(t, SendMail(ctx, l, "ann", send), locker.ErrHeld)
		time.Sleep(2 * time.Second)
		assert.NoError(t, SendMail(ctx, l, "ann", send), "after the cool-down")
		assert.Equal(t, 3, sent)
	})
}
