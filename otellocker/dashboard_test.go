package otellocker_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource datasource
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct {
		Datasource datasource
		Expr       string
		RefID      string `json:"refId"`
	}
	Options     json.RawMessage
	FieldConfig json.RawMessage
}

type datasource struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// Grafana can lay the panels out and has a source for each query.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	assert.NotEmpty(t, d.Title)
	assert.Regexp(t, `^[a-z-]{1,40}$`, d.UID)
	assert.GreaterOrEqual(t, d.SchemaVersion, 39)
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables["${"+v.Name+"}"] = v.Type
	}
	assert.Equal(t, map[string]string{"${datasource}": "datasource", "${job}": "query"}, variables)

	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		assert.NotEmpty(t, p.Title)
		assert.False(t, ids[p.ID], "%s: the id of another panel", p.Title)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			assert.Less(t, x, 24, p.Title)
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Empty(t, cells[[2]int{x, y}], "%s overlaps another panel", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
		assert.Contains(t, []string{"row", "stat", "timeseries"}, p.Type, p.Title)
		if p.Type == "row" {
			assert.Empty(t, p.Targets)
			continue
		}
		source := datasource{"prometheus", "${datasource}"}
		assert.Equal(t, source, p.Datasource, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		assert.NotEmpty(t, p.Options, p.Title)
		assert.NotEmpty(t, p.FieldConfig, p.Title)
		refs := map[string]bool{}
		for _, target := range p.Targets {
			assert.Equal(t, source, target.Datasource, p.Title)
			assert.False(t, refs[target.RefID], "%s: two queries %s", p.Title, target.RefID)
			refs[target.RefID] = true
		}
	}
	assert.Len(t, cells, 24*54, "there are gaps")
}

var (
	selector = regexp.MustCompile(`\b(locker_\w+)(?:\{([^}]*)\})`)
	matcher  = regexp.MustCompile(`(\w+)(=~|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// Each series, label and value that the dashboard asks for is in a real scrape, and all that is in
// the scrape is on the dashboard.
func TestDashboardAgainstScrape(t *testing.T) {
	families := scrape(t)
	delete(families, "target_info")
	shown := map[string]bool{}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			selectors := selector.FindAllStringSubmatch(target.Expr, -1)
			require.NotEmpty(t, selectors, target.Expr)
			assert.Equal(t, strings.Count(target.Expr, "locker_leases")+strings.Count(target.Expr, "locker_waiters")+
				strings.Count(target.Expr, "_total")+strings.Count(target.Expr, "_seconds_"), len(selectors),
				"a selector without braces: %s", target.Expr)
			assert.Equal(t, strings.Count(target.Expr, "("), strings.Count(target.Expr, ")"), target.Expr)
			var of []*dto.Metric // what the query is about
			for _, s := range selectors {
				name := s[1]
				family, found := families[name]
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					base, cut := strings.CutSuffix(name, suffix)
					if f, ok := families[base]; cut && ok && f.GetType() == dto.MetricType_HISTOGRAM {
						name, family, found = base, f, true
					}
				}
				if !assert.True(t, found, "no %s in a scrape: %s", name, p.Title) {
					continue
				}
				shown[name] = true
				of = family.GetMetric()
				job := false
				for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
					if m[1] == "job" { // Prometheus adds it
						job = true
						continue
					}
					for value := range strings.SplitSeq(m[3], "|") {
						assert.True(t, slices.ContainsFunc(of, func(metric *dto.Metric) bool {
							return labels(metric)[m[1]] == value
						}), "no %s with %s=%q in a scrape: %s", name, m[1], value, p.Title)
					}
				}
				assert.True(t, job, "not limited to the job: %s", target.Expr)
			}
			for _, g := range grouping.FindAllStringSubmatch(target.Expr, -1) {
				for label := range strings.SplitSeq(g[1], ", ") {
					assert.True(t, label == "le" || slices.ContainsFunc(of, func(metric *dto.Metric) bool {
						return labels(metric)[label] != ""
					}), "no label %s in a scrape: %s", label, p.Title)
				}
			}
		}
	}
	for name := range families {
		assert.True(t, shown[name], "%s is not on the dashboard", name)
	}
}
