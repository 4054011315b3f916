package otellocker

// The instruments: their names, units and descriptions.

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/golockers/locker/otellocker"

// The attributes; see the package documentation.
const (
	outcomeKey   = attribute.Key("locker.outcome")
	endKey       = attribute.Key("locker.end")
	operationKey = attribute.Key("locker.operation")
	loadKindKey  = attribute.Key("locker.load.kind")
	keyKey       = attribute.Key("locker.key")
	waitedKey    = attribute.Key("locker.waited")
	errorTypeKey = attribute.Key("error.type")
)

// Bounds of histograms, in seconds. A hit of a cache and an uncontended lock in memory take
// microseconds, a lock on a server a millisecond; a lease may last for hours.
var (
	shortBounds = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
		0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
	leaseBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
		10, 30, 60, 300, 900, 3600, 14400}
)

// series is what measurements with the same attributes share, apart from the key's: made once,
// since an event is to cost little.
type series struct {
	attrs  []attribute.KeyValue
	record []metric.RecordOption
	add    []metric.AddOption
}

// newSeries returns the series with these attributes and those of the options.
func (o *options) newSeries(attrs ...attribute.KeyValue) *series {
	return (&series{attrs: o.attrs}).with(attrs...)
}

func (s *series) with(attrs ...attribute.KeyValue) *series {
	all := make([]attribute.KeyValue, 0, len(s.attrs)+len(attrs))
	all = append(append(all, s.attrs...), attrs...)
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	return &series{attrs: all, record: []metric.RecordOption{set}, add: []metric.AddOption{set}}
}

// of returns the series for a key's attribute, which may be none.
func (s *series) of(key attribute.KeyValue) *series {
	if !key.Valid() {
		return s
	}
	return s.with(key)
}

// meter makes instruments. One that cannot be made, which the global error handler is told, does
// nothing.
type meter struct{ metric.Meter }

func (o *options) newMeter() meter { return meter{o.meters.Meter(scope)} }

type histogram struct{ metric.Float64Histogram }

func (m meter) histogram(name, description string, bounds []float64) histogram {
	h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		otel.Handle(err)
		h = noop.Float64Histogram{}
	}
	return histogram{h}
}

func (h histogram) observe(ctx context.Context, d time.Duration, s *series) {
	h.Record(ctx, d.Seconds(), s.record...)
}

func (m meter) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	if err != nil {
		otel.Handle(err)
		c = noop.Int64Counter{}
	}
	return c
}

func (m meter) upDownCounter(name, unit, description string) metric.Int64UpDownCounter {
	c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	if err != nil {
		otel.Handle(err)
		c = noop.Int64UpDownCounter{}
	}
	return c
}
