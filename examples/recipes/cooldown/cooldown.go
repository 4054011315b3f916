// Package cooldown does something once in a while for each user.
package cooldown

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
)

// SendMail calls send unless it has succeeded for this user in the last 10 minutes, in any
// replica. Otherwise the error is [locker.ErrHeld].
func SendMail(ctx context.Context, l locker.Locker, user string, send func(context.Context) error) error {
	lease, err := locker.TryLock(ctx, l, "password-mail/"+user, 10*time.Minute)
	if err != nil {
		return err
	}
	if err := send(ctx); err != nil {
		return errors.Join(err, lease.Unlock(ctx)) // the user may try again
	}
	lease.Detach() // the lock stays until its ttl ends
	return nil
}
