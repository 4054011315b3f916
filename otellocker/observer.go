package otellocker

// Which metrics and spans the events of locks become.

import (
	"context"
	"errors"

	"github.com/golockers/locker"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// observer measures acquisitions and leases.
type observer struct {
	options
	tracer tracer

	acquisitions, holding                 histogram
	waiters, leases                       metric.Int64UpDownCounter
	losses, unknown, extensions, cleanups metric.Int64Counter
	failedCleanups, overdue               metric.Int64Counter

	// Series, by the value of their one attribute:
	plain                                        *series // of none
	acquired, refused, failed                    *series
	unlocked, detached, lost, uncertain          *series
	acquireUnknown, extendUnknown, unlockUnknown *series
}

// NewObserver returns an Observer for [locker.Observed]. It may observe several Lockers, whose
// numbers then add up. An instrument that the MeterProvider refuses is reported to the global error
// handler of OpenTelemetry and then measures nothing.
func NewObserver(opts ...Option) locker.Observer {
	o := &observer{options: apply(opts)}
	m := o.newMeter()
	o.tracer = o.newTracer()
	o.acquisitions = m.histogram("locker.acquisition.duration",
		"Time from the beginning of an acquisition to its end, waiting included.", shortBounds)
	o.holding = m.histogram("locker.lease.duration", "Time for which a lease was held.", leaseBounds)
	o.waiters = m.upDownCounter("locker.waiters", "{acquisition}",
		"Acquisitions that have been refused and are waiting for the lock.")
	o.leases = m.upDownCounter("locker.leases", "{lease}", "Leases that are held.")
	o.losses = m.counter("locker.losses", "{lease}", "Leases that were lost while they were held.")
	o.unknown = m.counter("locker.unknown_outcomes", "{operation}",
		"Operations that failed, so that it is not known whether they took effect.")
	o.extensions = m.counter("locker.extensions", "{extension}", "Extensions that succeeded.")
	o.cleanups = m.counter("locker.cleanups", "{acquisition}",
		"Acquisitions of unknown outcome that had taken the lock after all, and were undone.")
	o.failedCleanups = m.counter("locker.failed_cleanups", "{acquisition}",
		"Acquisitions of unknown outcome that could not be undone.")
	o.overdue = m.counter("locker.overdue", "{lease}", "Leases that were held for longer than WithMaxHold allows.")

	o.plain = o.newSeries()
	o.acquired = o.newSeries(outcomeKey.String("acquired"))
	o.refused = o.newSeries(outcomeKey.String("refused"))
	o.failed = o.newSeries(outcomeKey.String("failed"))
	o.unlocked = o.newSeries(endKey.String("unlocked"))
	o.detached = o.newSeries(endKey.String("detached"))
	o.lost = o.newSeries(endKey.String("lost"))
	o.uncertain = o.newSeries(endKey.String("unknown"))
	o.acquireUnknown = o.newSeries(operationKey.String("acquire"))
	o.extendUnknown = o.newSeries(operationKey.String("extend"))
	o.unlockUnknown = o.newSeries(operationKey.String("unlock"))
	if o.key == nil {
		o.start()
	}
	return o
}

// start makes the series that are counted, at 0: a series that begins with its first event shows no
// increase, so no alert would see that one.
func (o *observer) start() {
	ctx := context.Background()
	o.waiters.Add(ctx, 0, o.plain.add...)
	o.leases.Add(ctx, 0, o.plain.add...)
	for _, c := range []metric.Int64Counter{o.losses, o.extensions, o.cleanups, o.failedCleanups, o.overdue} {
		c.Add(ctx, 0, o.plain.add...)
	}
	for _, s := range []*series{o.acquireUnknown, o.extendUnknown, o.unlockUnknown} {
		o.unknown.Add(ctx, 0, s.add...)
	}
}

// Observe implements [locker.Observer].
func (o *observer) Observe(ctx context.Context, e locker.Event) {
	key := o.keyAttribute(e.Key)
	plain := o.plain.of(key)
	if e.Waiters != 0 {
		o.waiters.Add(ctx, int64(e.Waiters), plain.add...)
	}
	if e.Leases != 0 {
		o.leases.Add(ctx, int64(e.Leases), plain.add...)
	}
	switch e.Kind {
	case locker.Acquired:
		o.acquisition(ctx, e, o.acquired.of(key))
	case locker.Refused:
		o.acquisition(ctx, e, o.refused.of(key))
	case locker.Failed:
		o.acquisition(ctx, e, o.failed.of(key))
		o.countUnknown(ctx, e, o.acquireUnknown, key)
	case locker.Extended:
		o.extensions.Add(ctx, 1, plain.add...)
	case locker.ExtendFailed:
		o.countUnknown(ctx, e, o.extendUnknown, key)
	case locker.UnlockFailed:
		o.countUnknown(ctx, e, o.unlockUnknown, key)
	case locker.CleanedUp:
		o.cleanups.Add(ctx, 1, plain.add...)
	case locker.NotCleanedUp:
		o.failedCleanups.Add(ctx, 1, plain.add...)
	case locker.Overdue:
		o.overdue.Add(ctx, 1, plain.add...)
	}
	if e.Leases < 0 {
		o.ended(ctx, e, key)
	}
}

func (o *observer) acquisition(ctx context.Context, e locker.Event, s *series) {
	o.acquisitions.observe(ctx, e.Took, s)
	over := span{name: "locker.acquire", took: e.Took, attrs: s.attrs, more: waitedKey.Bool(e.Waiters < 0)}
	if e.Kind == locker.Failed {
		over.err = e.Err
	}
	o.tracer.record(ctx, over)
}

// countUnknown counts a failure, unless the error says what happened.
func (o *observer) countUnknown(ctx context.Context, e locker.Event, s *series, key attribute.KeyValue) {
	if !isInvalid(e.Err) && !errors.Is(e.Err, locker.ErrNotHeld) {
		o.unknown.Add(ctx, 1, s.of(key).add...)
	}
}

// ended is for the event that ends a lease.
func (o *observer) ended(ctx context.Context, e locker.Event, key attribute.KeyValue) {
	s := o.uncertain
	switch {
	case e.Kind == locker.Unlocked:
		s = o.unlocked
	case e.Kind == locker.Detached:
		s = o.detached
	case errors.Is(e.Err, locker.ErrNotHeld):
		s = o.lost
		o.losses.Add(ctx, 1, o.plain.of(key).add...)
	}
	s = s.of(key)
	o.holding.observe(ctx, e.Took, s)
	o.tracer.record(ctx, span{name: "locker.hold", took: e.Took, attrs: s.attrs, err: e.Err})
}
