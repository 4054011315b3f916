package otellocker

import (
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Option configures [NewObserver] and [NewLoadObserver].
type Option func(*options)

type options struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	attrs   []attribute.KeyValue
	key     func(key string) string
}

func apply(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.meters == nil {
		o.meters = otel.GetMeterProvider()
	}
	if o.tracers == nil {
		o.tracers = otel.GetTracerProvider()
	}
	return o
}

// WithMeterProvider sets where metrics go. The default, used if p is nil, is the global
// MeterProvider, even one that is set later.
func WithMeterProvider(p metric.MeterProvider) Option { return func(o *options) { o.meters = p } }

// WithTracerProvider sets where spans go. The default, used if p is nil, is the global
// TracerProvider, even one that is set later.
func WithTracerProvider(p trace.TracerProvider) Option { return func(o *options) { o.tracers = p } }

// WithAttributes adds attributes to all metrics and spans, for instance to tell two backends apart.
// Attributes of several such options add up.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return func(o *options) { o.attrs = append(slices.Clip(o.attrs), attrs...) }
}

// WithKeyAttribute adds the attribute locker.key to all metrics and spans, with what f returns for
// the key of the lock or of the value. Without it no key leaves the process, since keys are often
// personal data, and each value of an attribute is a time series of its own. So f should return one
// of a few values, such as the key's prefix. If it returns "", the attribute is omitted. It must
// always return the same value for the same key, or the numbers of waiting callers and of leases
// are wrong, and it must be safe for concurrent use. The default, used if f is nil, is no
// attribute.
func WithKeyAttribute(f func(key string) string) Option { return func(o *options) { o.key = f } }

// keyAttribute returns the attribute for a key, which is not valid if there is to be none.
func (o *options) keyAttribute(key string) attribute.KeyValue {
	if o.key != nil {
		if value := o.key(key); value != "" {
			return keyKey.String(value)
		}
	}
	return attribute.KeyValue{}
}
