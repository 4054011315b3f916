package otellocker

import (
	"context"

	"github.com/golockers/locker/singleflight"
	"go.opentelemetry.io/otel/attribute"
)

// loadObserver measures the loads of Loaders.
type loadObserver struct {
	options
	tracer      tracer
	loads, work histogram
	kinds       [singleflight.StoreFailed + 1]*series
}

// NewLoadObserver returns a function for [singleflight.WithLoadObserver]. It may observe several
// Loaders, whose numbers then add up. To measure their locks as well, give them a Locker that is
// observed by what [NewObserver] returns.
func NewLoadObserver(opts ...Option) func(ctx context.Context, e singleflight.LoadEvent) {
	o := &loadObserver{options: apply(opts)}
	m := o.newMeter()
	o.tracer = o.newTracer()
	o.loads = m.histogram("locker.load.duration", "Time from the call of Load to its return.", shortBounds)
	o.work = m.histogram("locker.load.background.duration",
		"Time taken by the background work of a Loader.", shortBounds)
	for kind := range o.kinds {
		o.kinds[kind] = o.newSeries(loadKind(singleflight.LoadEventKind(kind)))
	}
	return o.observe
}

func loadKind(kind singleflight.LoadEventKind) attribute.KeyValue {
	return loadKindKey.String(kind.String())
}

func (o *loadObserver) observe(ctx context.Context, e singleflight.LoadEvent) {
	if int(e.Kind) >= len(o.kinds) { // of a newer version
		return
	}
	s := o.kinds[e.Kind].of(o.keyAttribute(e.Key))
	over := span{took: e.Took, attrs: s.attrs, first: e.First}
	switch e.Kind {
	case singleflight.LoadHit:
		o.loads.observe(ctx, e.Took, s)
		return // a span for each hit would bury the others
	case singleflight.LoadFailed:
		over.name, over.err = "locker.load", e.Err
	case singleflight.Refreshed:
		over.name = "locker.refresh"
	case singleflight.RefreshFailed:
		over.name, over.err = "locker.refresh", e.Err
	case singleflight.StoreFailed:
		over.name, over.err = "locker.store", e.Err
	default:
		over.name = "locker.load"
	}
	if e.Kind <= singleflight.LoadFailed {
		o.loads.observe(ctx, e.Took, s)
	} else {
		o.work.observe(ctx, e.Took, s)
	}
	o.tracer.record(ctx, over)
}
