// Package impatient serves callers that have less time than the source needs.
package impatient

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight"
)

// NewReports returns a Loader of reports that take up to 50 seconds to write.
func NewReports(l locker.Locker, cache singleflight.Cache[string],
	write func(ctx context.Context, name string) (string, error)) *singleflight.Loader[string] {
	return singleflight.NewLoader(l, cache, write, singleflight.WithBackendTimeout(200*time.Millisecond))
}

// Handler serves a report within 200 ms, or asks the client to come back.
func Handler(reports *singleflight.Loader[string]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 200*time.Millisecond)
		defer cancel()
		report, err := reports.Load(ctx, r.PathValue("name"))
		switch {
		case err == nil:
			_, _ = io.WriteString(w, report)
		case ctx.Err() != nil:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the report is being written", http.StatusServiceUnavailable)
		default:
			http.Error(w, "no report", http.StatusInternalServerError)
		}
	}
}
