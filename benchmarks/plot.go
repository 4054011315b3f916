package main

import (
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// colors can be told apart with any color vision (the palette of Okabe and Ito).
var colors = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.Black,
}

var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{},
	draw.BoxGlyph{}, draw.CrossGlyph{},
}

// plot writes the pictures for which there are results.
func (r *results) plot(dir string) error {
	for _, p := range []struct {
		file, title, unit, section string
		scenarios                  []string
	}{
		{"locks-throughput", "One Redis, cycles a second (more is better)", "cycles/s", "locks",
			[]string{"uncontended-1", "uncontended-32", "one-key-1x32", "one-key-4x8", "hand-off"}},
		{"locks-requests", "One Redis, requests a cycle (fewer is better)", "requests/cycle", "locks",
			[]string{"uncontended-1", "one-key-1x32", "one-key-4x8", "hand-off"}},
		{"locks-latency", "One Redis, time to get the lock, 99th percentile, ms", "lock-p99-ms", "locks",
			[]string{"uncontended-32", "one-key-1x32", "one-key-4x8", "hand-off"}},
		{"locks-fairness", "One Redis, the least served one's part of an equal share", "least-share", "locks",
			[]string{"one-key-1x32", "one-key-4x8", "hand-off"}},
		{"stampede-loads", "Loads of one missing key (1 is right)", "loads", "stampede",
			[]string{"8x50-20ms", "8x50-230ms", "8x10-50ms-fails", "slow-source"}},
		{"stampede-last", "The last caller, ms after the load ended", "last-after-load-ms", "stampede",
			[]string{"8x50-20ms", "8x50-230ms", "8x250-20ms"}},
		{"flights", "Single flight in one process, ns", "ns/op", "flights",
			[]string{"One", "OneLeaving", "Keys", "Thousand", "ThousandLeaving"}},
	} {
		if err := r.dots(filepath.Join(dir, p.file+".svg"), p.title, p.unit, p.section, p.scenarios); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		file, title, x, unit, section string
		scenario                      func(name string) (x float64, ok bool)
	}{
		{"stampede-requests", "Requests for one missing key, 50 goroutines each", "processes", "requests", "stampede",
			numbered("", "x50-20ms")},
		{"stampede-load-time", "Requests for one missing key, 8 × 50", "load time, ms", "requests", "stampede",
			numbered("8x50-", "ms")},
		{"stampede-goroutines", "The last caller, 8 processes, 20 ms load: ms", "goroutines a process", "last-caller-ms",
			"stampede", numbered("8x", "-20ms")},
		{"growth-requests", "Waiting for one lock, 5 ms hold: requests a cycle", "processes", "requests/cycle", "growth",
			numbered("processes-", "")},
		{"growth-throughput", "Waiting for one lock, 5 ms hold: cycles a second", "processes", "cycles/s", "growth",
			numbered("processes-", "")},
		{"leases-memory", "Locks held by one process: bytes each", "locks", "bytes/lease", "leases",
			numbered("leases-", "")},
	} {
		if err := r.lines(filepath.Join(dir, p.file+".svg"), p.title, p.x, p.unit, p.section, p.scenario); err != nil {
			return err
		}
	}
	return nil
}

// numbered finds the number between a prefix and a suffix of a scenario's name.
func numbered(prefix, suffix string) func(string) (float64, bool) {
	return func(name string) (float64, bool) {
		if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) || len(name) < len(prefix)+len(suffix) {
			return 0, false
		}
		n, err := strconv.ParseFloat(name[len(prefix):len(name)-len(suffix)], 64)
		return n, err == nil
	}
}

func newPlot(title, xLabel, yLabel string) *plot.Plot {
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xLabel, yLabel
	p.Title.Padding = vg.Points(8)
	p.Legend.Top = true
	p.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	return p
}

// dots has a line for each contender and a dot in it for each scenario, from left to right on a logarithmic
// scale, or on a linear one for shares.
func (r *results) dots(file, title, unit, section string, scenarios []string) error {
	var names []string
	for _, w := range r.rows {
		if w.section == section && slices.Contains(scenarios, w.scenario) && !slices.Contains(names, w.who) {
			names = append(names, w.who)
		}
	}
	slices.Reverse(names)        // the first is at the top
	p := newPlot(title, "", " ") // or the names are cut off
	logarithmic := !strings.HasSuffix(unit, "share")
	found, lowest, highest := false, math.Inf(1), math.Inf(-1)
	for i, scenario := range scenarios {
		var points plotter.XYs
		for _, w := range r.of(section, scenario) {
			v := w.median(unit)
			if math.IsNaN(v) || logarithmic && v <= 0 {
				continue
			}
			if v < 0.001 && logarithmic {
				v = 0.001
			}
			lowest, highest = min(lowest, v), max(highest, v)
			// Each scenario is a little below the one before, so that none hides another.
			y := float64(slices.Index(names, w.who)) + 0.5 - (float64(i)+0.5)/float64(len(scenarios))*0.7 - 0.15
			points = append(points, plotter.XY{X: v, Y: y})
		}
		if len(points) == 0 {
			continue
		}
		found = true
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		scatter.Color, scatter.Shape, scatter.Radius = colors[i%len(colors)], shapes[i%len(shapes)], vg.Points(4)
		p.Add(scatter)
		p.Legend.Add(scenario, scatter)
	}
	if !found {
		return nil
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))+float64(len(scenarios))*0.45
	if logarithmic {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.X.Min, p.X.Max = decade(lowest, math.Floor), decade(highest, math.Ceil)
		if p.X.Min == p.X.Max {
			p.X.Max *= 10
		}
	} else {
		p.X.Min, p.X.Max = 0, 1.05
	}
	height := vg.Inch + font.Length(len(names))*vg.Points(24) + font.Length(len(scenarios))*vg.Points(12)
	return p.Save(8*vg.Inch, height, file)
}

func decade(v float64, round func(float64) float64) float64 {
	return math.Pow(10, round(math.Log10(v)))
}

// lines has a line for each contender, over the number in the scenarios' names.
func (r *results) lines(file, title, xLabel, unit, section string, x func(string) (float64, bool)) error {
	var names []string
	byName := map[string]plotter.XYs{}
	lowest, highest := math.Inf(1), math.Inf(-1)
	for _, w := range r.rows {
		n, ok := x(w.scenario)
		v := w.median(unit)
		if w.section != section || !ok || n <= 0 || !(v > 0) {
			continue
		}
		if byName[w.who] == nil {
			names = append(names, w.who)
		}
		lowest, highest = min(lowest, v), max(highest, v)
		byName[w.who] = append(byName[w.who], plotter.XY{X: n, Y: v})
	}
	if len(names) == 0 {
		return nil
	}
	p := newPlot(title, xLabel, unit)
	for i, name := range names {
		points := byName[name]
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = colors[i%len(colors)], vg.Points(1.5)
		dots.Color, dots.Shape, dots.Radius = colors[i%len(colors)], shapes[i%len(shapes)], vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	var ticks plot.ConstantTicks
	for _, point := range byName[names[0]] {
		ticks = append(ticks, plot.Tick{Value: point.X, Label: strconv.FormatFloat(point.X, 'f', -1, 64)})
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max = p.X.Min*0.9, p.X.Max*1.2
	p.Y.Min, p.Y.Max = decade(lowest, math.Floor), decade(highest, math.Ceil)*10
	p.Legend.Left = true
	return p.Save(8*vg.Inch, 4.5*vg.Inch, file)
}
