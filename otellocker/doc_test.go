package otellocker_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/golockers/locker/otellocker"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// The package documentation lists the instruments, the attributes' values and the spans as they are.
func TestDocumentation(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	require.NoError(t, err)
	doc := (&ast.CommentGroup{List: file.Doc.List}).Text()
	space := regexp.MustCompile(` {2,}`)

	m := newMeters(t)
	p, recorder := newTracers(t)
	everything(t, p.Tracer("test"), otellocker.WithMeterProvider(m), otellocker.WithTracerProvider(p))
	var want []string
	values := map[string][]string{}
	for _, metric := range m.collect(t) {
		var sets []attribute.Set
		kind := "counter"
		switch data := metric.Data.(type) {
		case metricdata.Histogram[float64]:
			kind = "histogram"
			for _, p := range data.DataPoints {
				sets = append(sets, p.Attributes)
			}
		case metricdata.Sum[int64]:
			if !data.IsMonotonic {
				kind = "up-down counter"
			}
			for _, p := range data.DataPoints {
				sets = append(sets, p.Attributes)
			}
		}
		line := []string{metric.Name, kind, metric.Unit}
		for _, set := range sets {
			for _, attr := range set.ToSlice() {
				if !slices.Contains(line, string(attr.Key)) {
					line = append(line, string(attr.Key))
				}
				values[string(attr.Key)] = append(values[string(attr.Key)], attr.Value.AsString())
			}
		}
		want = append(want, strings.Join(line, "|"))
	}
	var documented []string
	described := map[string]string{} // by the first word of a line
	last := ""
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "\t") {
			continue
		}
		cells := space.Split(strings.TrimSpace(line), -1)
		switch {
		case len(cells) >= 3 && strings.HasPrefix(cells[0], "locker."):
			documented = append(documented, strings.Join(cells, "|"))
		case len(cells) == 2:
			last = cells[0]
			described[last] = cells[1]
		default:
			described[last] += " " + cells[0] // continues
		}
	}
	assert.ElementsMatch(t, want, documented)
	for attr, all := range values {
		for _, value := range all {
			assert.Regexp(t, `(^|[ ;,])`+value+`([:;,]|$)`, described[attr], attr)
		}
	}
	for _, span := range recorder.Ended() {
		if span.InstrumentationScope().Name != "test" {
			assert.Contains(t, described, span.Name())
		}
	}
}

// docs/operations.md names metrics and labels as Prometheus has them.
func TestOperationsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	known := map[string]bool{}
	for name, family := range scrape(t) {
		known[name] = true
		if family.GetType() == dto.MetricType_HISTOGRAM {
			known[name+"_count"] = true
		}
		for _, m := range family.GetMetric() {
			for label, value := range labels(m) {
				known[label], known[label+"="+value] = true, true
			}
		}
	}
	names := regexp.MustCompile(`\b(locker_[a-z_]+)(?:="([a-z-]+)")?`).FindAllStringSubmatch(string(page), -1)
	assert.Greater(t, len(names), 10)
	for _, name := range names {
		assert.True(t, known[name[1]], name[0])
		assert.True(t, name[2] == "" || known[name[1]+"="+name[2]], name[0])
	}
}
