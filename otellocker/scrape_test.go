package otellocker_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/golockers/locker/otellocker"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// scrape returns what Prometheus gets from the exporter, over HTTP, after every event.
func scrape(t *testing.T, opts ...otellocker.Option) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	require.NoError(t, err)
	p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })
	everything(t, nil, append(opts, otellocker.WithMeterProvider(p))...)

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	response, err := http.Get(server.URL)
	require.NoError(t, err)
	defer func() { assert.NoError(t, response.Body.Close()) }()
	require.Equal(t, http.StatusOK, response.StatusCode)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	return families
}

// labels returns the labels of a metric without those of every scope.
func labels(m *dto.Metric) map[string]string {
	found := map[string]string{}
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "otel_scope_name", "otel_scope_version", "otel_scope_schema_url":
		default:
			found[l.GetName()] = l.GetValue()
		}
	}
	return found
}

func TestScrape(t *testing.T) {
	families := scrape(t)
	delete(families, "target_info")
	types := map[string]dto.MetricType{}
	for name, f := range families {
		types[name] = f.GetType()
		assert.NotEmpty(t, f.GetHelp(), name)
	}
	assert.Equal(t, map[string]dto.MetricType{
		"locker_acquisition_duration_seconds":     dto.MetricType_HISTOGRAM,
		"locker_lease_duration_seconds":           dto.MetricType_HISTOGRAM,
		"locker_waiters":                          dto.MetricType_GAUGE,
		"locker_leases":                           dto.MetricType_GAUGE,
		"locker_losses_total":                     dto.MetricType_COUNTER,
		"locker_unknown_outcomes_total":           dto.MetricType_COUNTER,
		"locker_extensions_total":                 dto.MetricType_COUNTER,
		"locker_cleanups_total":                   dto.MetricType_COUNTER,
		"locker_failed_cleanups_total":            dto.MetricType_COUNTER,
		"locker_overdue_total":                    dto.MetricType_COUNTER,
		"locker_load_duration_seconds":            dto.MetricType_HISTOGRAM,
		"locker_load_background_duration_seconds": dto.MetricType_HISTOGRAM,
	}, types)

	values := map[string]float64{}
	for _, name := range []string{"locker_losses_total", "locker_waiters", "locker_leases"} {
		metrics := families[name].GetMetric()
		require.Len(t, metrics, 1, name)
		assert.Empty(t, labels(metrics[0]), name)
		values[name] = metrics[0].GetCounter().GetValue() + metrics[0].GetGauge().GetValue()
	}
	assert.Equal(t, map[string]float64{"locker_losses_total": 3, "locker_waiters": 0, "locker_leases": 0}, values)
	for _, m := range families["locker_acquisition_duration_seconds"].GetMetric() {
		if labels(m)["locker_outcome"] == "refused" {
			assert.EqualValues(t, 2, m.GetHistogram().GetSampleCount())
			assert.InDelta(t, 1, m.GetHistogram().GetSampleSum(), 1e-6)
			assert.Len(t, m.GetHistogram().GetBucket(), 19)
		}
	}
}
