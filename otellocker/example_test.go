package otellocker_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/otellocker"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A program exports metrics with the reader of an exporter, such as Prometheus's. This one reads
// them itself.
func Example() {
	reader := metric.NewManualReader()
	meters := metric.NewMeterProvider(metric.WithReader(reader))

	l := locker.Observed(memory.New(), otellocker.NewObserver(
		otellocker.WithMeterProvider(meters),
		otellocker.WithKeyAttribute(func(key string) string { // "invoice/42" is an invoice
			kind, _, _ := strings.Cut(key, "/")
			return kind
		}),
	))
	ctx := context.Background()
	err := locker.Do(ctx, l, "invoice/42", time.Minute, func(context.Context) error {
		printLeases(reader)
		return nil
	})
	fmt.Println(err)
	printLeases(reader)
	// Output:
	// invoice: 1 held
	// <nil>
	// invoice: 0 held
}

func printLeases(reader metric.Reader) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		fmt.Println(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "locker.leases" {
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				key, _ := p.Attributes.Value("locker.key")
				fmt.Printf("%s: %d held\n", key.AsString(), p.Value)
			}
		}
	}
}
