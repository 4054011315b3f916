// Report makes docs/proof.md from the figures that tests recorded, see [proof.Record]:
//
//	cd conformance/internal/proof && go run ./report results.jsonl > ../../../docs/proof.md
//
// The text of the page is in page.md. A line "<!-- table: SECTION -->" in it stands for the table
// of a section.
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/golockers/locker/conformance/internal/proof"
)

//go:embed page.md
var page string

var table = regexp.MustCompile(`(?m)^<!-- table: (.*) -->$`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: report FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sections, err := read(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	text, err := fill(page, sections)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

// read returns the rows of each section. A later row replaces an earlier one with the same name.
func read(data []byte) (map[string][]proof.Row, error) {
	sections := make(map[string][]proof.Row)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var row proof.Row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, err
		}
		rows := sections[row.Section]
		if i := slices.IndexFunc(rows, func(r proof.Row) bool { return r.Name == row.Name }); i >= 0 {
			rows[i] = row
		} else {
			sections[row.Section] = append(rows, row)
		}
	}
	return sections, lines.Err()
}

// fill puts the tables into the page. It returns an error if a table has no place or a place has no
// table.
func fill(page string, sections map[string][]proof.Row) (string, error) {
	var wrong []string
	used := make(map[string]bool)
	page = strings.ReplaceAll(page, "<!-- durations -->", durations(sections))
	page = strings.ReplaceAll(page, "<!-- machine -->", machine(sections))
	text := table.ReplaceAllStringFunc(page, func(place string) string {
		name := table.FindStringSubmatch(place)[1]
		used[name] = true
		if len(sections[name]) == 0 {
			wrong = append(wrong, "no figures for "+name)
			return place
		}
		return markdown(sections[name])
	})
	for name := range sections {
		if !used[name] {
			wrong = append(wrong, "no place for "+name)
		}
	}
	if wrong != nil {
		slices.Sort(wrong)
		return "", fmt.Errorf("page.md: %s", strings.Join(wrong, ", "))
	}
	return text, nil
}

// durations returns the values of DURATION with which the rows were made.
func durations(sections map[string][]proof.Row) string {
	var all []string
	for _, rows := range sections {
		for _, row := range rows {
			if !slices.Contains(all, row.Duration) {
				all = append(all, row.Duration)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// machine says what processors and load the machine had on which the rows were made.
func machine(sections map[string][]proof.Row) string {
	var processors int
	least, most := math.Inf(1), 0.0
	for _, rows := range sections {
		for _, row := range rows {
			processors = max(processors, row.Processors)
			if row.Load > 0 {
				least, most = min(least, row.Load), max(most, row.Load)
			}
		}
	}
	if most == 0 {
		return "processors and a load average that are not known"
	}
	return fmt.Sprintf("%d processors and a load average of %.0f to %.0f", processors, least, most)
}

// markdown returns the table of a section, with a column for each name of a count.
func markdown(rows []proof.Row) string {
	var names []string
	for _, row := range rows {
		for _, c := range row.Counts {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b proof.Row) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("--:|", len(names)))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.Name)
		for _, name := range names {
			value := ""
			if i := slices.IndexFunc(row.Counts, func(c proof.Count) bool { return c.Name == name }); i >= 0 {
				value = row.Counts[i].Value
			}
			fmt.Fprintf(&b, " %s |", value)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}
