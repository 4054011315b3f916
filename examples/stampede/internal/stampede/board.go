package stampede

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker/internal/fleet"
)

const (
	// frame is the interval between samples of a process, and the shortest between updates of a
	// page.
	frame = 50 * time.Millisecond

	// The eye needs a break after a strategy, and after a round.
	afterStrategy = 300 * time.Millisecond
	afterRound    = 1200 * time.Millisecond

	// historyLength is how many rounds the page shows.
	historyLength = 24
)

// view is everything that the page shows. Every page gets all of it after each change, so a page
// that connects late or again needs nothing else.
type view struct {
	Backend       string         `json:"backend"`
	Goroutines    int            `json:"goroutines"` // callers of each process in the next round
	MaxGoroutines int            `json:"maxGoroutines"`
	Load          int64          `json:"load"` // ms a query takes in the next round
	MaxLoad       int64          `json:"maxLoad"`
	Playing       bool           `json:"playing"` // rounds follow each other
	Round         int            `json:"round"`   // rounds that are complete
	Problem       string         `json:"problem"` // why the last round has failed
	Strategies    []strategyView `json:"strategies"`

	pages   int  // that are open
	another bool // round is due although not playing
}

type strategyView struct {
	Name      string    `json:"name"`
	About     string    `json:"about"`
	Running   bool      `json:"running"`
	Callers   int       `json:"callers"` // of each process in the newest round
	Processes []sample  `json:"processes"`
	Last      *figures  `json:"last"`
	History   []figures `json:"history"` // the newest is last
}

// figures are the outcome of a round of one strategy.
type figures struct {
	Queries  int64   `json:"queries"`
	Requests int64   `json:"requests"`
	LastMS   float64 `json:"lastMs"`
}

// ready reports whether to begin a round. Without an open page it reports false.
func (v *view) ready() bool { return v.pages > 0 && (v.Playing || v.another) }

// board holds the view, and wakes goroutines that wait for a change.
type board struct {
	mu      sync.Mutex
	view    view
	changed chan struct{} // closed at the next change
}

func newBoard(s settings) *board {
	v := view{
		Backend: "an embedded Redis", Goroutines: s.goroutines, MaxGoroutines: max(200, s.goroutines),
		Load: s.load.Milliseconds(), MaxLoad: max(3000, s.load.Milliseconds()), Playing: true,
	}
	if s.backend != nil {
		v.Backend = s.backend.String()
	}
	for _, strategy := range strategies {
		v.Strategies = append(v.Strategies, strategyView{
			Name: strategy.name, About: strategy.about, Callers: s.goroutines, Processes: make([]sample, s.processes),
			History: []figures{},
		})
	}
	return &board{view: v, changed: make(chan struct{})}
}

func (b *board) change(f func(*view)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.view)
	close(b.changed)
	b.changed = make(chan struct{})
}

// read returns the view as JSON, and a channel that is closed when it is out of date.
func (b *board) read() ([]byte, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := json.Marshal(b.view)
	return text, b.changed, err
}

// await returns once the condition holds. Its error is that of ctx.
func (b *board) await(ctx context.Context, condition func(*view) bool) error {
	for {
		b.mu.Lock()
		holds, changed := condition(&b.view), b.changed
		b.mu.Unlock()
		if holds {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// saw shows the sample of a process. Only one strategy runs at a time.
func (b *board) saw(process int, now sample) {
	b.change(func(v *view) {
		for i := range v.Strategies {
			if v.Strategies[i].Running {
				v.Strategies[i].Processes[process] = now
			}
		}
	})
}

// play runs rounds whenever one is due. It returns nil when ctx has ended, and an error when no
// further round is possible. The page shows the error of a round, which stops the rounds until the
// user starts them again.
func (b *board) play(ctx context.Context, r *rounds) error {
	for _, strategy := range strategies { // the first round opens connections, and is not shown
		_, err := r.run(ctx, strategy, command{Goroutines: 10})
		if err != nil {
			return fmt.Errorf("%s, first round: %w", strategy.name, err)
		}
	}
	for b.await(ctx, (*view).ready) == nil {
		err := b.round(ctx, r)
		if errors.Is(err, fleet.ErrEnded) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			b.change(func(v *view) { v.Problem, v.Playing = err.Error(), false })
		}
		pause(ctx, afterRound)
	}
	return nil
}

// round runs all strategies once, with the settings that the page has when it begins.
func (b *board) round(ctx context.Context, r *rounds) error {
	c := command{Every: frame}
	b.change(func(v *view) {
		v.another, v.Problem = false, ""
		c.Goroutines, c.Load = v.Goroutines, time.Duration(v.Load)*time.Millisecond
	})
	for i, strategy := range strategies {
		b.change(func(v *view) {
			now := &v.Strategies[i]
			now.Running, now.Callers, now.Last = true, c.Goroutines, nil
			clear(now.Processes)
		})
		one, err := r.run(ctx, strategy, c)
		b.change(func(v *view) { v.Strategies[i].finish(one, err) })
		if err != nil {
			return fmt.Errorf("%s: %w", strategy.name, err)
		}
		pause(ctx, afterStrategy)
	}
	b.change(func(v *view) { v.Round++ })
	return nil
}

func (v *strategyView) finish(one round, err error) {
	v.Running = false
	for i := range v.Processes {
		v.Processes[i].Waiting, v.Processes[i].Loading = 0, 0
	}
	if err != nil {
		return
	}
	for i, queries := range one.byProcess { // the last samples may be a frame old
		v.Processes[i].Queries = queries
	}
	v.Last = &figures{Queries: one.queries, Requests: one.requests, LastMS: float64(one.last.Microseconds()) / 1000}
	v.History = append(v.History, *v.Last)
	v.History = v.History[max(0, len(v.History)-historyLength):]
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
