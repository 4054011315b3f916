// Package otellocker measures locks and loads with OpenTelemetry: how long callers wait, how long
// locks are held, which were lost, and how cached values were loaded.
//
//	l := locker.Observed(redisv9.New(client), otellocker.NewObserver())
//	loader := singleflight.NewLoader(l, cache, source,
//		singleflight.WithLoadObserver(otellocker.NewLoadObserver()))
//
// It uses only the API of OpenTelemetry. The program chooses an SDK and exporters, and passes its
// providers with [WithMeterProvider] and [WithTracerProvider] or sets the global ones. This exports
// to Prometheus, through the default registry of its client:
//
//	exporter, err := prometheus.New(prometheus.WithoutScopeInfo()) // go.opentelemetry.io/otel/exporters/prometheus
//	...
//	meters := metric.NewMeterProvider(metric.WithReader(exporter)) // otel/sdk/metric
//	observer := otellocker.NewObserver(otellocker.WithMeterProvider(meters))
//	http.Handle("/metrics", promhttp.Handler()) // github.com/prometheus/client_golang
//
// WithoutScopeInfo leaves out the labels otel_scope_name, otel_scope_version and otel_scope_schema_url,
// which are the same on every series of this package.
//
// # Metrics
//
// OpenTelemetry has no conventions for locks, so the names are this package's own. Durations are
// in seconds, and all units are those of UCUM.
//
//	instrument                       kind             unit           attributes
//	locker.acquisition.duration      histogram        s              locker.outcome
//	locker.waiters                   up-down counter  {acquisition}
//	locker.leases                    up-down counter  {lease}
//	locker.lease.duration            histogram        s              locker.end
//	locker.losses                    counter          {lease}
//	locker.extensions                counter          {extension}
//	locker.unknown_outcomes          counter          {operation}    locker.operation
//	locker.cleanups                  counter          {acquisition}
//	locker.failed_cleanups           counter          {acquisition}
//	locker.overdue                   counter          {lease}
//	locker.load.duration             histogram        s              locker.load.kind
//	locker.load.background.duration  histogram        s              locker.load.kind
//
// The attributes have these values:
//
//	locker.outcome    acquired; refused: another token holds the lock; failed: any other error
//	locker.end        unlocked; detached; lost; unknown: Unlock got no answer
//	locker.operation  acquire, extend, unlock
//	locker.load.kind  hit, joined, waited, stale, loaded, loaded-unlocked, load-failed;
//	                  in the background refreshed, refresh-failed, store-failed
//	locker.key        what the function of WithKeyAttribute returns
//
// A lease that Detach gave up is detached, and so is one that WithMinHold leaves to its ttl. It is
// no longer counted by locker.leases.
//
// The histograms also count: acquisitions by outcome, leases by the way they ended, and loads by
// kind, as in [singleflight.LoadEventKind].
//
// locker.acquisition.duration covers a whole acquisition, including the time that it waited.
// locker.waiters counts the acquisitions that have been refused and go on waiting, and
// locker.leases the leases that are held. Both return to 0, however acquisitions and leases end.
// The numbers of several Lockers and processes add up.
//
// locker.losses counts the leases that were lost while they were held, whether the keep-alive, a
// deadline or Unlock noticed it. locker.unknown_outcomes counts operations that returned an error
// and may or may not have taken effect, such as those whose context ended before the answer
// arrived. An acquisition whose context ends after it was refused is counted as refused instead.
// locker.cleanups counts the acquisitions of unknown outcome that turned out to have taken the
// lock. These were undone. locker.failed_cleanups counts those that could not be undone, and may hold
// the lock until their ttl. locker.overdue counts the leases that were held for longer than
// [locker.WithMaxHold] allows.
//
// The counters and up-down counters are exported from the start, at 0, so that an alert on an
// increase sees the first one. With [WithKeyAttribute] they begin with the first event of a key.
//
// Prometheus calls these metrics locker_acquisition_duration_seconds, locker_losses_total and so
// on. The directory of this package has a dashboard for Grafana, dashboard.json, which uses
// those names. [What to alert on] explains what they mean for operators.
//
// # Spans
//
// Spans are children of the span in the caller's context. Without such a span none are made. They
// are made when what they describe has ended, so spans of a backend's client are siblings, not
// children.
//
//	locker.acquire  an acquisition, with locker.outcome and locker.waited
//	locker.hold     the time for which a lease was held, with locker.end
//	locker.load     a Load other than a hit, with locker.load.kind
//	locker.refresh  a refresh in the background, with locker.load.kind
//	locker.store    a value that could not be stored, with locker.load.kind
//
// A span of something that failed, or of a lease that was lost, has the status Error and the
// attribute error.type, but no message, since the text of an error contains the key.
//
// The span of a Load that joined another caller's load in this process has a link to the span in
// that caller's context, under which the source was called. A load by another process is not
// linked.
//
// # What is not measured
//
// A direct call of a Locker's method has no lease, and neither does a cohort's lock on its backend.
// For these, locker.leases, locker.lease.duration and locker.losses count nothing. Observe a cohort
// itself to count the leases of its callers. Of the callers of a [locker.Keyed] that wait for the
// same lock, locker.waiters counts one: the others wait for it. The counts of package window are not
// measured.
//
// # Cost
//
// Compared with a Locker that is not observed, an uncontended TryLock and Unlock makes two more
// allocations, as with any Observer, and a Load makes one more. In memory, such a lock took 1.1 µs
// bare, 2.1 µs with metrics, 3.8 µs with a key attribute as well, and 5.5 µs with metrics and
// sampled spans. A Load that hit took 0.5 µs bare and 0.8 µs with metrics. These are medians of 8
// runs of BenchmarkLock and BenchmarkHit on a virtual machine. A lock on a server takes tens of
// microseconds or more.
//
// [What to alert on]: https://github.com/golockers/locker/blob/main/docs/operations.md#what-to-alert-on
package otellocker
