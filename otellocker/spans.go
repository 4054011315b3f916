package otellocker

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracer makes spans of what is over.
type tracer struct{ trace.Tracer }

func (o *options) newTracer() tracer { return tracer{o.tracers.Tracer(scope)} }

// span is what becomes of an event in a trace.
type span struct {
	name  string
	took  time.Duration
	attrs []attribute.KeyValue
	more  attribute.KeyValue // if valid
	first context.Context    // of the load that was joined; nil if there is none
	err   error              // makes the span a failure; its text may contain the key, so it stays out
}

// record adds a span that ends now, as a child of the one in ctx. Without one it does nothing: a
// span alone would be a trace of its own.
func (t tracer) record(ctx context.Context, s span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	end := time.Now()
	opts := make([]trace.SpanStartOption, 0, 4)
	opts = append(opts, trace.WithTimestamp(end.Add(-s.took)), trace.WithAttributes(s.attrs...))
	if s.more.Valid() {
		opts = append(opts, trace.WithAttributes(s.more))
	}
	if s.first != nil {
		if first := trace.SpanContextFromContext(s.first); first.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: first}))
		}
	}
	_, recorded := t.Start(ctx, s.name, opts...)
	if s.err != nil {
		recorded.SetAttributes(errorTypeKey.String(errorType(s.err)))
		recorded.SetStatus(codes.Error, "")
	}
	recorded.End(trace.WithTimestamp(end))
}

// errorType returns one of a few names for err.
func errorType(err error) string {
	switch {
	case errors.Is(err, locker.ErrNotHeld):
		return "not_held"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case isInvalid(err):
		return "invalid"
	}
	return "_OTHER" // as the semantic conventions have it
}

// isInvalid reports whether err means that the request was impossible, so nothing happened.
func isInvalid(err error) bool {
	return errors.Is(err, locker.ErrInvalidTTL) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidToken)
}
