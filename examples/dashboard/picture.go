package main

import (
	"context"
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// dashboard is the part of Grafana's format that the picture needs.
type dashboard struct{ Panels []panel }

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct{ Stacking struct{ Mode string } }
		}
	}
}

func readDashboard(file string) (dashboard, error) {
	var d dashboard
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	return d, err
}

// Grafana's grid has 24 columns.
const (
	column  = 1.35 * vg.Centimeter
	rowHigh = 0.8 * vg.Centimeter
	gap     = 0.3 * vg.Centimeter

	legendWidth = 4.2 * vg.Centimeter
)

// The palette of Okabe and Ito: its colors can be told apart with any color vision.
var colors = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0xf0, 0xe4, 0x42, 0xff}, color.Gray{0x60}, color.Black,
}

// draw writes the picture, with each panel at its place in the grid.
func (d dashboard) draw(ctx context.Context, p prometheusAPI, out string) error {
	rows := 0
	for _, panel := range d.Panels {
		rows = max(rows, panel.GridPos.Y+panel.GridPos.H)
	}
	width, height := 24*column, vg.Length(rows)*rowHigh
	picture := vgsvg.New(width, height)
	canvas := draw.New(picture)
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	for _, panel := range d.Panels {
		at := panel.GridPos
		left, top := vg.Length(at.X)*column, height-vg.Length(at.Y)*rowHigh
		place := draw.Canvas{Canvas: canvas.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: left + gap, Y: top - vg.Length(at.H)*rowHigh + gap},
			Max: vg.Point{X: left + vg.Length(at.W)*column - gap, Y: top - gap},
		}}
		if err := panel.draw(ctx, p, place); err != nil {
			return fmt.Errorf("%s: %w", panel.Title, err)
		}
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	_, err = picture.WriteTo(file)
	if e := file.Close(); err == nil {
		err = e
	}
	return err
}

func (panel panel) draw(ctx context.Context, p prometheusAPI, place draw.Canvas) error {
	var all []series
	for _, target := range panel.Targets {
		found, err := p.query(ctx, target.Expr, target.LegendFormat)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	switch panel.Type {
	case "row":
		write(place, panel.Title, 16, draw.XLeft, place.Min.X, place.Min.Y)
		return nil
	case "stat":
		write(place, panel.Title, 13, draw.XLeft, place.Min.X, place.Max.Y-13)
		write(place, last(all), 36, draw.XCenter, (place.Min.X+place.Max.X)/2, place.Min.Y+gap)
		return nil
	}
	return panel.plot(p, all, place)
}

func write(place draw.Canvas, text string, size font.Length, align draw.XAlignment, x, y vg.Length) {
	style := draw.TextStyle{
		Color: color.Black, Font: font.From(plot.DefaultFont, size), XAlign: align, Handler: plot.DefaultTextHandler,
	}
	place.FillText(style, vg.Point{X: x, Y: y}, text)
}

// last returns the latest value of the only series, as a stat panel shows it.
func last(all []series) string {
	text := "–"
	for _, s := range all {
		for _, v := range s.values {
			if !math.IsNaN(v) {
				text = strconv.FormatFloat(v, 'f', 0, 64)
			}
		}
	}
	return text
}

// plot draws the series over the time, stacked where the panel says so.
func (panel panel) plot(p prometheusAPI, all []series, place draw.Canvas) error {
	g := plot.New()
	g.Title.Text = panel.Title
	g.Title.TextStyle.Font.Size = 13
	g.X.Label.Text = "seconds"
	g.Y.Label.Text = map[string]string{"s": "seconds", "ops": "per second", "percentunit": "share"}[panel.FieldConfig.Defaults.Unit]
	g.Y.Min = 0
	g.X.Min, g.X.Max = 0, math.Floor(p.to.Sub(p.from).Seconds()/10)*10
	g.Add(plotter.NewGrid())
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Millimeter
	names := draw.Crop(place, place.Max.X-place.Min.X-legendWidth, 0, 0, -rowHigh)
	stacked := panel.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"
	if stacked {
		stack(all)
	}
	for i := range all {
		s := all[i]
		if stacked { // draw from the top of the stack, so that each series covers those above it
			s = all[len(all)-1-i]
		}
		shade := colors[i%len(colors)]
		for n, part := range s.parts() {
			line, err := plotter.NewLine(part)
			if err != nil {
				return err
			}
			line.Color, line.Width = shade, 1.5
			if stacked {
				line.FillColor = shade
			}
			g.Add(line)
			if n == 0 {
				legend.Add(s.name, line)
			}
		}
	}
	g.Draw(draw.Crop(place, 0, -legendWidth-gap, 0, 0))
	legend.Draw(names)
	return nil
}

// stack adds to each series the ones before it.
func stack(all []series) {
	for i := 1; i < len(all); i++ {
		for j, below := range all[i-1].values {
			if math.IsNaN(all[i].values[j]) {
				all[i].values[j] = 0
			}
			if !math.IsNaN(below) {
				all[i].values[j] += below
			}
		}
	}
}

// parts returns the lines between the gaps.
func (s series) parts() []plotter.XYs {
	var parts []plotter.XYs
	open := false
	for i, v := range s.values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			open = false
			continue
		}
		if !open {
			parts, open = append(parts, nil), true
		}
		last := len(parts) - 1
		parts[last] = append(parts[last], plotter.XY{X: s.at[i], Y: v})
	}
	return parts
}
