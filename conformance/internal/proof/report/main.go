// Report makes docs/proof.md from the figures that tests recorded, see [proof.Record]:
//
//	cd conformance/internal/proof && go run ./report report/proof.md.tmpl results.jsonl > ../../../docs/proof.md
//
// In proof.md.tmpl a line "<!-- table: SECTION -->" stands for the table of a section, and a line
// "<!-- totals: SECTION -->" for a table that has one row for all rows whose names end in the same
// part after a comma. The rows behind such a table are in results.md, which is made from results.md.tmpl in
// the same way.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golockers/locker/conformance/internal/proof"
)

var table = regexp.MustCompile(`(?m)^<!-- (table|totals): (.*) -->$`)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: report PAGE FIGURES")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(page, figures string, out io.Writer) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(figures)
	if err != nil {
		return err
	}
	sections, err := read(data)
	if err != nil {
		return fmt.Errorf("%s: %w", figures, err)
	}
	filled, err := fill(string(text), sections)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	_, err = io.WriteString(out, filled)
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

// fill puts the tables into the page. It returns an error if a place has no table.
func fill(page string, sections map[string][]proof.Row) (string, error) {
	var wrong []string
	page = strings.ReplaceAll(page, "<!-- durations -->", durations(sections))
	page = strings.ReplaceAll(page, "<!-- machine -->", machine(sections))
	text := table.ReplaceAllStringFunc(page, func(place string) string {
		match := table.FindStringSubmatch(place)
		name := match[2]
		rows := sections[name]
		if len(rows) == 0 {
			wrong = append(wrong, "no figures for "+name)
			return place
		}
		if match[1] == "totals" {
			var err error
			if rows, err = totals(rows); err != nil {
				wrong = append(wrong, name+": "+err.Error())
			}
		}
		return markdown(rows)
	})
	if wrong != nil {
		slices.Sort(wrong)
		return "", fmt.Errorf("%s", strings.Join(wrong, ", "))
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

// totals returns one row for all rows whose names end in the same part after a comma. It adds their
// numbers and has the longest of their durations.
func totals(rows []proof.Row) ([]proof.Row, error) {
	var sums []proof.Row
	for _, row := range rows {
		name := strings.TrimSpace(row.Name[strings.LastIndex(row.Name, ",")+1:])
		i := slices.IndexFunc(sums, func(sum proof.Row) bool { return sum.Name == name })
		if i < 0 {
			sums = append(sums, proof.Row{Name: name, Counts: slices.Clone(row.Counts)})
			continue
		}
		for _, c := range row.Counts {
			j := slices.IndexFunc(sums[i].Counts, func(sum proof.Count) bool { return sum.Name == c.Name })
			if j < 0 {
				sums[i].Counts = append(sums[i].Counts, c)
				continue
			}
			var err error
			if sums[i].Counts[j].Value, err = add(sums[i].Counts[j].Value, c.Value); err != nil {
				return nil, fmt.Errorf("%s of %s: %w", c.Name, row.Name, err)
			}
		}
	}
	return sums, nil
}

// add returns the sum of two numbers, or the longer of two durations.
func add(a, b string) (string, error) {
	m, err1 := strconv.Atoi(a)
	n, err2 := strconv.Atoi(b)
	if err1 == nil && err2 == nil {
		return strconv.Itoa(m + n), nil
	}
	s, err1 := time.ParseDuration(a)
	t, err2 := time.ParseDuration(b)
	return max(s, t).String(), errors.Join(err1, err2)
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
