package main

import (
	"os"
	"testing"

	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestReport(t *testing.T) {
	sections, err := read([]byte(`{"Section":"Histories","Name":"redisv9","Counts":[{"Name":"illegal","Value":"1"}]}
{"Section":"Histories","Name":"memory","Counts":[{"Name":"illegal","Value":"0"},{"Name":"unknown","Value":"7"}]}
{"Section":"Histories","Name":"redisv9","Counts":[{"Name":"illegal","Value":"0"}],"Duration":"1m","Processors":4,"Load":7.5}
{"Section":"Histories","Name":"redigo","Counts":[{"Name":"illegal","Value":"0"}],"Duration":"1m","Processors":4,"Load":1.2}
`))
	require.NoError(t, err)
	text, err := fill("# Page <!-- durations -->, <!-- machine -->\n\n<!-- table: Histories -->\n\nEnd.\n", sections)
	require.NoError(t, err)
	assert.Equal(t, `# Page , 1m, 4 processors and a load average of 1 to 8

| | illegal | unknown |
|---|--:|--:|
| memory | 0 | 7 |
| redigo | 0 |  |
| redisv9 | 0 |  |

End.
`, text)
}

func TestReportMissing(t *testing.T) {
	_, err := fill("<!-- table: Histories -->\n", map[string][]proof.Row{"Soak": {{Section: "Soak", Name: "all"}}})
	require.EqualError(t, err, "no figures for Histories")
}

func TestTotals(t *testing.T) {
	row := func(name, leases, wait string) proof.Row {
		return proof.Row{Name: name, Counts: []proof.Count{{Name: "leases", Value: leases}, {Name: "wait", Value: wait}}}
	}
	text, err := fill("<!-- totals: Disturbances -->\n", map[string][]proof.Row{"Disturbances": {
		row("KILL, redigo", "3", "20ms"), row("Cluster, KILL, redisv9", "5", "1s"), row("STOP, redigo", "4", "1.2s"),
	}})
	require.NoError(t, err)
	assert.Equal(t, "| | leases | wait |\n|---|--:|--:|\n| redigo | 7 | 1.2s |\n| redisv9 | 5 | 1s |\n", text)

	_, err = fill("<!-- totals: Disturbances -->\n", map[string][]proof.Row{"Disturbances": {
		row("KILL, redigo", "3", "20ms"), row("STOP, redigo", "4", "1.2 seconds"),
	}})
	require.ErrorContains(t, err, "Disturbances: wait of STOP, redigo:")
}

func TestEachSectionHasOnePlace(t *testing.T) {
	data, err := os.ReadFile("../results.jsonl")
	require.NoError(t, err)
	sections, err := read(data)
	require.NoError(t, err)
	tables := make(map[string]int)
	for _, name := range []string{"proof.md.tmpl", "results.md.tmpl"} {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, place := range table.FindAllStringSubmatch(string(page), -1) {
			if place[1] == "table" {
				tables[place[2]]++
			}
		}
	}
	for name := range sections {
		assert.Equal(t, 1, tables[name], name)
	}
	assert.Len(t, tables, len(sections))
}
