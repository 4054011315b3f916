package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Prometheus knows none of Grafana's variables, so none may be left in a query.
func TestVariables(t *testing.T) {
	d, err := readDashboard("../../otellocker/dashboard.json")
	require.NoError(t, err)
	require.NotEmpty(t, d.Panels)
	p := prometheusAPI{from: time.Unix(100, 0), to: time.Unix(190, 0)}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			assert.NotContains(t, p.replace(target.Expr), "$", panel.Title)
		}
	}
	assert.Equal(t, `x{job=~".*"}[1m30s] y[6s]`, p.replace(`x{job=~"$job"}[$__range] y[$__rate_interval]`))
	assert.Equal(t, "unknown extend", label("unknown {{operation}}", map[string]string{"operation": "extend"}))
}

func TestStack(t *testing.T) {
	none := math.NaN()
	all := []series{{values: []float64{1, none, 3}}, {values: []float64{10, 20, none}}}
	stack(all)
	assert.Equal(t, []float64{11, 20, 3}, all[1].values)
}

func TestParts(t *testing.T) {
	none := math.NaN()
	parts := series{at: []float64{0, 2, 4, 6, 8}, values: []float64{none, 1, 2, none, 3}}.parts()
	require.Len(t, parts, 2)
	assert.Len(t, parts[0], 2)
	assert.Len(t, parts[1], 1)
}
