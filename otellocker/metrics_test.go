package otellocker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/otellocker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// meters is a MeterProvider whose metrics a test reads.
type meters struct {
	*sdkmetric.MeterProvider
	reader *sdkmetric.ManualReader
}

func newMeters(t testing.TB) meters {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })
	return meters{p, reader}
}

// collect returns the metrics.
func (m meters) collect(t testing.TB) []metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(context.Background(), &all))
	require.LessOrEqual(t, len(all.ScopeMetrics), 1)
	for _, s := range all.ScopeMetrics {
		assert.Equal(t, "github.com/golockers/locker/otellocker", s.Scope.Name)
		return s.Metrics
	}
	return nil
}

// values returns the value of each series, and its number of measurements if it is a histogram.
func (m meters) values(t testing.TB) map[string]int {
	t.Helper()
	values := map[string]int{}
	for _, metric := range m.collect(t) {
		name := func(set attribute.Set) string {
			if set.Len() == 0 {
				return metric.Name
			}
			return metric.Name + "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
		}
		switch data := metric.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				values[name(p.Attributes)] = int(p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				values[name(p.Attributes)] = int(p.Count)
			}
		default:
			assert.Fail(t, "unexpected data", "%T", data)
		}
	}
	return values
}

// sum returns the sum of a histogram's series that has this attribute, in seconds.
func (m meters) sum(t testing.TB, name string, attr attribute.KeyValue) float64 {
	t.Helper()
	for _, metric := range m.collect(t) {
		if h, ok := metric.Data.(metricdata.Histogram[float64]); ok && metric.Name == name {
			for _, p := range h.DataPoints {
				if v, _ := p.Attributes.Value(attr.Key); v == attr.Value {
					return p.Sum
				}
			}
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	m := newMeters(t)
	everything(t, nil, otellocker.WithMeterProvider(m))
	assert.Equal(t, map[string]int{
		"locker.acquisition.duration{locker.outcome=acquired}": 9,
		"locker.acquisition.duration{locker.outcome=refused}":  2,
		"locker.acquisition.duration{locker.outcome=failed}":   1,
		"locker.lease.duration{locker.end=unlocked}":           3,
		"locker.lease.duration{locker.end=detached}":           2,
		"locker.lease.duration{locker.end=lost}":               3,
		"locker.lease.duration{locker.end=unknown}":            1,
		"locker.waiters": 0,
		"locker.leases":  0,
		"locker.losses":  3,
		"locker.unknown_outcomes{locker.operation=acquire}": 1,
		"locker.unknown_outcomes{locker.operation=extend}":  1,
		"locker.unknown_outcomes{locker.operation=unlock}":  1,
		"locker.extensions":      2,
		"locker.cleanups":        1,
		"locker.failed_cleanups": 0,
		"locker.overdue":         0,

		"locker.load.duration{locker.load.kind=hit}":                       1,
		"locker.load.duration{locker.load.kind=joined}":                    1,
		"locker.load.duration{locker.load.kind=waited}":                    1,
		"locker.load.duration{locker.load.kind=stale}":                     2,
		"locker.load.duration{locker.load.kind=loaded}":                    2,
		"locker.load.duration{locker.load.kind=loaded-unlocked}":           1,
		"locker.load.duration{locker.load.kind=load-failed}":               1,
		"locker.load.background.duration{locker.load.kind=refreshed}":      1,
		"locker.load.background.duration{locker.load.kind=refresh-failed}": 1,
		"locker.load.background.duration{locker.load.kind=store-failed}":   1,
	}, m.values(t))
	for _, c := range []struct {
		name  string
		attr  attribute.KeyValue
		total float64
	}{
		{"locker.acquisition.duration", attribute.String("locker.outcome", "acquired"), 1}, // one waited
		{"locker.acquisition.duration", attribute.String("locker.outcome", "refused"), 1},
		{"locker.acquisition.duration", attribute.String("locker.outcome", "failed"), 1},
		{"locker.lease.duration", attribute.String("locker.end", "unlocked"), 8},
		{"locker.lease.duration", attribute.String("locker.end", "lost"), 10},
		{"locker.load.duration", attribute.String("locker.load.kind", "loaded"), 2},
		{"locker.load.duration", attribute.String("locker.load.kind", "joined"), 0.9},
		{"locker.load.background.duration", attribute.String("locker.load.kind", "refreshed"), 1},
	} {
		assert.InDelta(t, c.total, m.sum(t, c.name, c.attr), 1e-6, "%s %s", c.name, c.attr.Value.Emit())
	}
}

// The numbers of waiting callers and of leases are right while they are not 0.
func TestPresentNumbers(t *testing.T) {
	m := newMeters(t)
	synctest.Test(t, func(t *testing.T) {
		l := locker.Observed(lockertest.New(), otellocker.NewObserver(otellocker.WithMeterProvider(m)))
		first, err := locker.Lock(t.Context(), l, "k", time.Hour)
		require.NoError(t, err)
		for range 3 {
			go func() {
				lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
				if assert.NoError(t, err) {
					time.Sleep(time.Minute)
					assert.NoError(t, lease.Unlock(t.Context()))
				}
			}()
		}
		for waiters := 3; waiters >= 0; waiters-- {
			synctest.Wait()
			values := m.values(t)
			assert.Equal(t, waiters, values["locker.waiters"])
			assert.Equal(t, 1, values["locker.leases"])
			if waiters == 3 {
				assert.NoError(t, first.Unlock(t.Context()))
			} else {
				time.Sleep(time.Minute)
			}
		}
		synctest.Wait()
		assert.Zero(t, m.values(t)["locker.leases"])
	})
}

// What is counted is there before the first event, at 0.
func TestSeriesStartAtZero(t *testing.T) {
	m := newMeters(t)
	otellocker.NewObserver(otellocker.WithMeterProvider(m))
	assert.Equal(t, map[string]int{
		"locker.waiters": 0, "locker.leases": 0, "locker.losses": 0, "locker.extensions": 0, "locker.cleanups": 0,
		"locker.failed_cleanups": 0, "locker.overdue": 0,
		"locker.unknown_outcomes{locker.operation=acquire}": 0,
		"locker.unknown_outcomes{locker.operation=extend}":  0,
		"locker.unknown_outcomes{locker.operation=unlock}":  0,
	}, m.values(t))
}

// An operation that was impossible has a known outcome.
func TestInvalidIsNotUnknown(t *testing.T) {
	m := newMeters(t)
	synctest.Test(t, func(t *testing.T) {
		backend := lockertest.New()
		l := locker.Observed(backend, otellocker.NewObserver(otellocker.WithMeterProvider(m)))
		backend.Fail(lockertest.Acquire, locker.ErrInvalidTTL)
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		backend.Fail(lockertest.Acquire, nil)
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		backend.Fail(lockertest.Extend, locker.ErrInvalidTTL)
		require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), locker.ErrInvalidTTL)
		require.NoError(t, lease.Unlock(t.Context()))
	})
	values := m.values(t)
	assert.Equal(t, 1, values["locker.acquisition.duration{locker.outcome=failed}"])
	for _, operation := range []string{"acquire", "extend"} {
		assert.Zero(t, values["locker.unknown_outcomes{locker.operation="+operation+"}"])
	}
}

func TestAttributes(t *testing.T) {
	type labels = map[string]int // what is expected of each series' attributes
	count := func(t *testing.T, opts ...otellocker.Option) labels {
		m := newMeters(t)
		everything(t, nil, append(opts, otellocker.WithMeterProvider(m))...)
		found := labels{}
		for series, n := range m.values(t) {
			_, attrs, _ := strings.Cut(series, "{")
			attrs = strings.TrimSuffix(attrs, "}")
			key, backend := "none", ""
			for attr := range strings.SplitSeq(attrs, ",") {
				name, value, _ := strings.Cut(attr, "=")
				if name == "locker.key" {
					key = value
				}
				if name == "locker.backend" {
					backend = "@" + value
				}
			}
			found[key+backend]++
			if series == "locker.waiters"+"{"+attrs+"}" || series == "locker.leases"+"{"+attrs+"}" {
				assert.Zero(t, n)
			}
		}
		return found
	}
	const series, unused = 25, 2 // those without an event are there only without an attribute of keys
	prefix := func(key string) string { before, _, _ := strings.Cut(key, "/"); return before }
	assert.Equal(t, labels{"none": series + unused}, count(t))
	assert.Equal(t, labels{"none": series + unused}, count(t, otellocker.WithKeyAttribute(nil)))
	assert.Equal(t, labels{"none": series},
		count(t, otellocker.WithKeyAttribute(func(string) string { return "" })))
	assert.Equal(t, labels{"secret": series}, count(t, otellocker.WithKeyAttribute(prefix)))
	assert.Equal(t, labels{"secret@redis": series}, count(t, otellocker.WithKeyAttribute(prefix),
		otellocker.WithAttributes(attribute.String("locker.backend", "redis"))))
}

// Without providers the global ones are used, even if they are set later. Those that refuse an
// instrument cost it alone.
func TestProviders(t *testing.T) {
	defer otel.SetMeterProvider(otel.GetMeterProvider())
	defer otel.SetErrorHandler(otel.GetErrorHandler())
	m := laterMeters()
	const unlocked = "locker.lease.duration{locker.end=unlocked}"
	before := m.values(t)[unlocked]
	run := func(opts ...otellocker.Option) {
		l := locker.Observed(lockertest.New(), otellocker.NewObserver(opts...))
		otel.SetMeterProvider(m)
		require.NoError(t, locker.Do(t.Context(), l, "k", time.Minute, func(context.Context) error { return nil }))
	}
	run()
	run(otellocker.WithMeterProvider(nil), otellocker.WithTracerProvider(nil))
	assert.Equal(t, before+2, m.values(t)[unlocked])

	refused := 0
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) { refused++ }))
	everything(t, nil, otellocker.WithMeterProvider(refuses{}))
	assert.NotZero(t, refused)
}

// laterMeters is the first MeterProvider that is set: what was made before delegates to it alone.
var laterMeters = sync.OnceValue(func() meters {
	reader := sdkmetric.NewManualReader()
	return meters{sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), reader}
})

// refuses is a provider of meters that make no instruments.
type refuses struct{ noop.MeterProvider }

func (refuses) Meter(string, ...metric.MeterOption) metric.Meter { return refusing{} }

type refusing struct{ noop.Meter }

func (refusing) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errBackend
}

func (refusing) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errBackend
}

func (refusing) Int64UpDownCounter(string, ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return nil, errBackend
}

// What was left on the backend, and who hangs, is counted.
func TestNotCleanedUpAndOverdue(t *testing.T) {
	m := newMeters(t)
	synctest.Test(t, func(t *testing.T) {
		backend := lockertest.New()
		l := locker.Observed(backend, otellocker.NewObserver(otellocker.WithMeterProvider(m)))
		backend.Fail(lockertest.Acquire, assert.AnError)
		backend.Fail(lockertest.Release, assert.AnError)
		_, err := locker.TryLock(t.Context(), l, "k", 10*time.Second)
		require.ErrorIs(t, err, assert.AnError)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, m.values(t)["locker.failed_cleanups"])

		backend.Fail(lockertest.Acquire, nil)
		backend.Fail(lockertest.Release, nil)
		_, err = locker.TryDo(t.Context(), l, "hangs", 3*time.Second, func(context.Context) error {
			time.Sleep(time.Hour)
			return nil
		}, locker.WithMaxHold(time.Minute))
		require.ErrorIs(t, err, locker.ErrNotHeld)
		values := m.values(t)
		assert.Equal(t, 1, values["locker.overdue"])
		assert.Equal(t, 1, values["locker.losses"])
	})
}
