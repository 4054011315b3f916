package main

import (
	"cmp"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture has panels of a section.
type picture struct {
	file, title, section string
	figures              []figure
}

// figure is what a panel shows of a scenario.
type figure struct {
	scenario, unit string
	better         direction
	ours           string // the contender that the title compares with the best peer; empty: our best
	label          string // in the title; empty: none
}

// figures shows the same of each scenario.
func figures(unit string, better direction, scenarios ...string) []figure {
	all := make([]figure, len(scenarios))
	for i, scenario := range scenarios {
		all[i] = figure{scenario: scenario, unit: unit, better: better}
	}
	return all
}

// direction is the sign of the difference from a worse value to a better one.
type direction int

const (
	more direction = 1
	less direction = -1
)

// The pictures are made for a page that is 700 pixels wide. Their background is white on dark pages
// as well.
const (
	pictureWidth           = 7 * vg.Inch
	titleHeight  vg.Length = 22 // points
	panelTitle   vg.Length = 20
	barPitch     vg.Length = 14
)

var (
	oursColor  = colors[0]
	peersColor = color.Gray{0xb0}
)

// panels writes the picture, unless there are no results for it: one panel for each figure, with a
// bar for each contender, the best at the top.
func (r *results) panels(dir string, p picture) error {
	var panels []panel
	most := 0
	for _, f := range p.figures {
		if panel := r.panel(p.section, f); len(panel.bars) > 0 {
			panels = append(panels, panel)
			most = max(most, len(panel.bars))
		}
	}
	if len(panels) == 0 {
		return nil
	}
	columns := 2
	rows := (len(panels) + columns - 1) / columns
	panelHeight := panelTitle + vg.Length(most)*barPitch + 10
	canvas := vgsvg.New(pictureWidth, titleHeight+vg.Length(rows)*panelHeight)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	write(all, p.title, 12, color.Black, all.Min.X+8, all.Max.Y-titleHeight/2)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: 12, PadTop: titleHeight, PadLeft: 8, PadRight: 8}
	for i, panel := range panels {
		panel.draw(tiles.At(all, i%columns, i/columns))
	}
	return save(canvas, filepath.Join(dir, p.file+".svg"))
}

func save(canvas *vgsvg.Canvas, name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

type panel struct {
	title string
	bars  []bar
}

type bar struct {
	who   string
	value float64
	ours  bool
}

// panel returns the bars of a figure. Its title has the ratio of this library's best, or of the
// contender that the figure names, to the best peer: the median over the rounds.
func (r *results) panel(section string, f figure) panel {
	result := panel{title: f.scenario}
	if f.label != "" {
		result.title += ", " + f.label
	}
	best := map[bool]*row{}
	for _, w := range r.of(section, f.scenario) {
		v := w.median(f.unit)
		if math.IsNaN(v) {
			continue
		}
		ours := isOurs(w.who)
		result.bars = append(result.bars, bar{w.who, v, ours})
		if ours && f.ours != "" && f.ours != w.who {
			continue
		}
		if b := best[ours]; b == nil || float64(f.better)*(v-b.median(f.unit)) > 0 {
			best[ours] = w
		}
	}
	slices.SortStableFunc(result.bars, func(a, b bar) int {
		return int(f.better) * cmp.Compare(b.value, a.value)
	})
	if q := ratio(best[true], best[false], f.unit); !math.IsNaN(q) && !math.IsInf(q, 0) {
		result.title += ": " + number(q) + " × the best peer"
	}
	return result
}

// isOurs reports whether a contender of any section is of this library.
func isOurs(who string) bool {
	if c, err := findContender(who); err == nil {
		return c.ours
	}
	return who == "Group" || who == "Fleet" || slices.ContainsFunc(strategies, func(s strategy) bool { return s.name == who && s.ours })
}

// draw draws the panel: names on the left, bars from a common zero, and the values at their ends.
func (p panel) draw(c draw.Canvas) {
	names, values, longest := vg.Length(0), vg.Length(0), 0.0
	for _, b := range p.bars {
		names = max(names, width(b.who, 9))
		values = max(values, width(number(b.value), 9))
		longest = max(longest, b.value)
	}
	write(c, p.title, 10, color.Black, c.Min.X, c.Max.Y-panelTitle/2)
	zero := c.Min.X + names + 5
	room := c.Max.X - zero - values - 5
	for i, b := range p.bars {
		middle := c.Max.Y - panelTitle - (vg.Length(i)+0.5)*barPitch
		fill, ink := color.Color(peersColor), color.Color(color.Gray{0x40})
		if b.ours {
			fill, ink = oursColor, oursColor
		}
		end := zero + 1
		if longest > 0 {
			end = max(end, zero+room*vg.Length(b.value/longest))
		}
		write(c, b.who, 9, ink, c.Min.X, middle)
		bar := vg.Rectangle{Min: vg.Point{X: zero, Y: middle - barPitch*0.36}, Max: vg.Point{X: end, Y: middle + barPitch*0.36}}
		c.SetColor(fill)
		c.Fill(bar.Path())
		write(c, number(b.value), 9, ink, end+4, middle)
	}
}

func style(size vg.Length, ink color.Color) draw.TextStyle {
	face := plot.DefaultFont
	face.Variant, face.Size = "Sans", size
	return draw.TextStyle{Color: ink, Font: face, Handler: text.Plain{Fonts: font.DefaultCache}}
}

// width is a little more than the text's in the font known here, as the reader's may be wider.
func width(s string, size vg.Length) vg.Length { return 1.2 * style(size, color.Black).Width(s) }

// write writes s to the right of x, with its middle at y.
func write(c draw.Canvas, s string, size vg.Length, ink color.Color, x, y vg.Length) {
	st := style(size, ink)
	st.YAlign = draw.YCenter
	c.FillText(st, vg.Point{X: x, Y: y}, s)
}
