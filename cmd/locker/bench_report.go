package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/guptarohit/asciigraph"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg" // the format
)

// report is what bench prints and writes.
type report struct {
	Backend          string
	Goroutines, Keys int
	Date             time.Time
	Results          []*result
}

// row is a line of the table, and with --json an object.
type row struct {
	Name      string  `json:"name"`
	Count     int64   `json:"count"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
}

// Rows returns the table.
func (r *report) Rows() []row {
	var rows []row
	for _, result := range r.Results {
		rows = append(rows, row{
			Name: result.Name, Count: result.Counts.TotalCount(), PerSecond: result.perSecond(),
			P50: ms(result.percentile(50)), P90: ms(result.percentile(90)), P99: ms(result.percentile(99)),
			Max: ms(time.Duration(result.Counts.Max())),
		})
	}
	return rows
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Title describes what was measured.
func (r *report) Title() string {
	return fmt.Sprintf("%s, goroutines: %d, shared keys: %d", r.Backend, r.Goroutines, r.Keys)
}

func (r *report) print(w io.Writer, asJSON, inColor bool) error {
	if asJSON {
		for _, row := range r.Rows() {
			if err := printJSON(w, row); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(w, "%s\n\n", r.Title())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tcount\tper second\tp50 ms\tp90 ms\tp99 ms\tmax ms\t")
	for _, row := range r.Rows() {
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t\n",
			row.Name, row.Count, row.PerSecond, row.P50, row.P90, row.P99, row.Max)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.graph(inColor))
	return err
}

// graphPercentiles is how many percentiles the graph has, from 0: the last ones would make the
// others indistinguishable.
const graphPercentiles = 97

// graph draws the percentiles in characters.
func (r *report) graph(inColor bool) string {
	var series [][]float64
	var names []string
	for _, result := range r.Results {
		if result.Counts.TotalCount() == 0 {
			continue
		}
		var points []float64
		for p := range graphPercentiles {
			points = append(points, ms(result.percentile(float64(p))))
		}
		series, names = append(series, points), append(names, result.Name)
	}
	if len(series) == 0 {
		return ""
	}
	options := []asciigraph.Option{
		asciigraph.Height(10), asciigraph.Width(64), asciigraph.LowerBound(0), asciigraph.Precision(2),
		asciigraph.XAxisRange(0, graphPercentiles-1), asciigraph.XAxisTickCount(4),
		asciigraph.XAxisValueFormatter(func(p float64) string { return fmt.Sprintf("p%.0f", p) }),
	}
	colors, signs := []asciigraph.AnsiColor{asciigraph.Green, asciigraph.Blue, asciigraph.Red}, []string{".", "o", "#"}
	if inColor {
		options = append(options, asciigraph.SeriesColors(colors[:len(series)]...), asciigraph.SeriesLegends(names...))
		return "ms\n" + asciigraph.PlotMany(series, options...)
	}
	var sets []asciigraph.CharSet
	for i := range series {
		sets = append(sets, asciigraph.CreateCharSet(signs[i]))
		names[i] = signs[i] + " " + names[i]
	}
	options = append(options, asciigraph.SeriesChars(sets...))
	return "ms    " + strings.Join(names, "   ") + "\n" + asciigraph.PlotMany(series, options...)
}

// svg draws how many of the operations took up to which time.
func (r *report) svg() ([]byte, error) {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = r.Title()
	p.X.Label.Text, p.Y.Label.Text = "ms", "percentile"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 3}
	p.Add(plotter.NewGrid())
	// The legend is on the right, with each line before its name, since the width of a name depends
	// on the reader's font.
	p.Legend.Left, p.Legend.XOffs, p.Legend.Padding = true, 11*vg.Centimeter, vg.Millimeter
	for i, result := range r.Results {
		if result.Counts.TotalCount() == 0 {
			continue
		}
		var points plotter.XYs
		for at := 1.0; at < 100; at += 0.5 {
			points = append(points, plotter.XY{X: max(ms(result.percentile(at)), 1e-6), Y: at})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(2)
		p.Add(line)
		p.Legend.Add(result.Name, line)
	}
	to, err := p.WriterTo(16*vg.Centimeter, 10*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = to.WriteTo(&b)
	return b.Bytes(), err
}

//go:embed report.html
var page string

// write writes the report to a file, by whose name it is a page or a picture.
func (r *report) write(file string) error {
	picture, err := r.svg()
	if err != nil {
		return err
	}
	if strings.HasSuffix(file, ".svg") {
		return os.WriteFile(file, picture, 0o666)
	}
	_, picture, _ = bytes.Cut(picture, []byte("?>")) // the declaration of XML has no place in HTML
	var b bytes.Buffer
	err = template.Must(template.New("page").Parse(page)).Execute(&b, struct {
		*report
		Picture template.HTML
	}{r, template.HTML(picture)})
	if err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}
