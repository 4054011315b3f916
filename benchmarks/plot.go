package main

import (
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
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
	for _, p := range []picture{
		{"locks-throughput", "Locks on one Redis: cycles a second, more is better", "locks",
			figures("cycles/s", more, "uncontended-1", "uncontended-32", "uncontended-256", "uncontended-1000",
				"one-key-1x32", "one-key-4x8", "hand-off")},
		{"locks-requests", "Locks on one Redis: requests a cycle, fewer are better", "locks",
			figures("requests/cycle", less, "uncontended-32", "one-key-1x32", "one-key-4x8", "hand-off")},
		{"locks-latency", "Locks on one Redis: ms to get the lock, 99th percentile, less is better", "locks",
			figures("lock-p99-ms", less, "uncontended-32", "one-key-1x32", "one-key-4x8", "hand-off")},
		{"locks-fairness", "Locks on one Redis: share of the one served least, 1 is fair", "locks",
			figures("least-share", more, "one-key-1x32", "one-key-4x8", "hand-off")},
		{"linger", "Locks that linger: cycles a second; ms until another process has one", "linger", []figure{
			{"same-key", "cycles/s", more, "redisv9+linger", ""},
			{"random-1000-keys", "cycles/s", more, "redisv9+linger", ""},
			{"first-access", "lock-p50-ms", less, "redisv9+linger", "median"},
			{"first-access", "lock-p99-ms", less, "redisv9+linger", "p99"},
		}},
		{"stampede-loads", "Loads of one missing key: 1 is right", "stampede",
			figures("loads", less, "8x50-20ms", "8x50-230ms", "8x10-50ms-fails", "slow-source")},
		{"stampede-last", "One missing key: ms from the load's end to the last caller, less is better", "stampede",
			figures("last-after-load-ms", less, "8x50-20ms", "8x50-230ms", "8x250-20ms")},
		{"flights", "Single flight in one process: ns, less is better", "flights",
			figures("ns/op", less, "One", "OneLeaving", "Keys", "Thousand", "ThousandLeaving")},
	} {
		if err := r.panels(dir, p); err != nil {
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
		{"scale-queue", "Waiting for one lock: requests a second while nothing happens", "waiters", "requests/s", "scale",
			numbered("queue-", "")},
		{"scale-keys", "Waiting for as many locks: requests a second while nothing happens", "locks", "requests/s", "scale",
			numbered("keys-", "")},
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
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	return p
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
		ticks = append(ticks, plot.Tick{Value: point.X, Label: number(point.X)})
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(func(least, most float64) []plot.Tick {
		marks := plot.LogTicks{Prec: -1}.Ticks(least, most)
		for i, mark := range marks {
			if mark.Label != "" {
				marks[i].Label = number(mark.Value)
			}
		}
		return marks
	})
	p.X.Min, p.X.Max = p.X.Min*0.9, p.X.Max*1.2
	p.Y.Min, p.Y.Max = decade(lowest, math.Floor), decade(highest, math.Ceil)*10
	p.Legend.Left = true
	canvas := vgsvg.New(pictureWidth, 4.2*vg.Inch)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, 6, -24, 4, -8)) // the last label is centered at the edge
	return save(canvas, file)
}
