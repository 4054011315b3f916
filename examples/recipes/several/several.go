// Package several works under the locks of several keys.
package several

import (
	"context"
	"time"

	"github.com/golockers/locker"
)

// Transfer calls move while no other Transfer from or to one of the two accounts runs.
func Transfer(ctx context.Context, l locker.Locker, from, to string, move func(context.Context) error) error {
	return locker.DoAll(ctx, l, []string{"account/" + from, "account/" + to}, 30*time.Second, move)
}
