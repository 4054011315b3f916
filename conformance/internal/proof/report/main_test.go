package main

import (
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
	require.EqualError(t, err, "page.md: no figures for Histories, no place for Soak")
}

func TestPageHasEachTableOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, place := range table.FindAllStringSubmatch(page, -1) {
		assert.False(t, seen[place[1]], place[1])
		seen[place[1]] = true
	}
	assert.NotEmpty(t, seen)
}
