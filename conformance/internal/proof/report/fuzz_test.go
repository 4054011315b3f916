package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/stretchr/testify/require"
)

// The page contains each record of a test, and a line that is not a record is an error.
func FuzzReport(f *testing.F) {
	f.Add("Histories", "redisv9", "illegal", "0", "")
	f.Add("", "", "", "", "{")
	f.Add("a", "b|c", "d", "e\n", `{"Section":"a","Name":"b","Counts":[{"Name":"d","Value":"x"}]}`)
	f.Fuzz(func(t *testing.T, section, name, count, value, more string) {
		line, err := json.Marshal(proof.Row{Section: section, Name: name, Counts: []proof.Count{{Name: count, Value: value}}})
		require.NoError(t, err)
		sections, err := read([]byte(more + "\n" + string(line)))
		if err != nil {
			return
		}
		for section, rows := range sections {
			require.NotEmpty(t, rows)
			table := markdown(rows)
			require.GreaterOrEqual(t, strings.Count(table, "\n"), 1+len(rows))
			_, err := fill("<!-- table: "+section+" -->\n", map[string][]proof.Row{section: rows})
			require.True(t, err == nil || strings.ContainsAny(section, "\n\r") || len(section) == 0, err)
		}
	})
}
