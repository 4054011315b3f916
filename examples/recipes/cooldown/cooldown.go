// Package cooldown does something once in a while for each user.
package cooldown

import (
	"context"
	"time"

	"github.com/golockers/locker"
)

// SendMail calls send unless it has succeeded for this user in the last 10 minutes, in any
// replica. It reports whether it has called send.
func SendMail(ctx context.Context, l locker.Locker, user string, send func(context.Context) error) (bool, error) {
	return locker.TryDo(ctx, l, "password-mail/"+user, 10*time.Minute, func(ctx context.Context) error {
		err := send(ctx)
		if err == nil {
			locker.FromContext(ctx).Detach() // the lock stays until its ttl ends
		}
		return err
	})
}
