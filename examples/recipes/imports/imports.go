// Package imports runs at most three imports at a time, in the whole fleet.
package imports

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/semaphore"
)

// Handler runs an import for each request, three at a time in the whole fleet. The others wait.
func Handler(l locker.Locker, runImport func(context.Context) error) http.Handler {
	imports := semaphore.New(l, "imports", 3)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done := false
		err := imports.Do(r.Context(), 30*time.Second, func(ctx context.Context) error {
			err := runImport(ctx)
			done = err == nil
			return err
		})
		switch {
		case done && err != nil: // the permit was lost or could not be released
			slog.WarnContext(r.Context(), "import permit", "error", err)
		case errors.Is(err, locker.ErrHeld): // the client has left, or does not want to wait any longer
			http.Error(w, "too many imports are under way", http.StatusServiceUnavailable)
		case err != nil:
			http.Error(w, "the import failed", http.StatusInternalServerError)
		}
	})
}
