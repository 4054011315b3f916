package stampede

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"
)

//go:embed page
var page embed.FS

// farewell is how long requests that are under way may take at the end.
const farewell = time.Second

// errNoPage means that the page could not be served at its address.
var errNoPage = errors.New("cannot serve the page")

// servePage shows rounds on a page until ctx ends.
func servePage(ctx context.Context, backend Backend, s settings, stdout io.Writer) error {
	listener, err := net.Listen("tcp", s.http)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoPage, err)
	}
	defer listener.Close()
	fmt.Fprintf(stdout, "stampede: the page is at %s; Ctrl-C ends it\n", browserURL(listener.Addr()))
	b := newBoard(s)
	r, err := setUp(ctx, backend, s, b.saw)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer r.close()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := &http.Server{
		Handler:           b.handler(),
		ReadHeaderTimeout: Patience,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the streams of events
	}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(listener)
		stop()
	}()

	err = b.play(ctx, r)
	if ctx.Err() != nil {
		err = nil // a round was interrupted
	}
	stop()
	grace, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if server.Shutdown(grace) != nil { // a browser has connected in advance, or a client stopped in mid-request
		err = errors.Join(err, server.Close())
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// browserURL returns the URL of the page for a browser on this machine.
func browserURL(a net.Addr) string {
	host, port, _ := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}

func (b *board) handler() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is wrong
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /events", b.events)
	mux.HandleFunc("POST /controls", b.controls)
	// Reject requests from other pages that the browser has open.
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src data:")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		mux.ServeHTTP(w, r)
	}))
}

// events sends the view, and sends it again after each change. A slow page misses some changes, but
// not the last one.
func (b *board) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	b.change(func(v *view) { v.pages++ })
	defer b.change(func(v *view) { v.pages-- })
	stream := http.NewResponseController(w)
	for {
		text, changed, err := b.read()
		if err != nil {
			return
		}
		// A page that has stopped reading must not count as open.
		_ = stream.SetWriteDeadline(time.Now().Add(2 * Patience))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || stream.Flush() != nil {
			return
		}
		pause(r.Context(), frame)
		select {
		case <-changed:
		case <-time.After(Patience): // send it again, to detect whether the page is still open
		case <-r.Context().Done():
			return
		}
	}
}

// controls are the parts of the view that the page can change. Absent parts stay as they are.
type controls struct {
	Goroutines *int   `json:"goroutines"`
	Load       *int64 `json:"load"`
	Playing    *bool  `json:"playing"`
	Another    bool   `json:"another"`
}

func (b *board) controls(w http.ResponseWriter, r *http.Request) {
	var c controls
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1024))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		http.Error(w, "controls: "+err.Error(), http.StatusBadRequest)
		return
	}
	var err error
	b.change(func(v *view) { err = c.apply(v) })
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// apply applies all of the controls or none.
func (c controls) apply(v *view) error {
	if c.Goroutines != nil && (*c.Goroutines < 1 || *c.Goroutines > v.MaxGoroutines) {
		return fmt.Errorf("goroutines %d is not between 1 and %d", *c.Goroutines, v.MaxGoroutines)
	}
	if c.Load != nil && (*c.Load < 0 || *c.Load > v.MaxLoad) {
		return fmt.Errorf("load %d is not between 0 and %d", *c.Load, v.MaxLoad)
	}
	set(&v.Goroutines, c.Goroutines)
	set(&v.Load, c.Load)
	set(&v.Playing, c.Playing)
	v.another = v.another || c.Another
	return nil
}

func set[T any](field *T, to *T) {
	if to != nil {
		*field = *to
	}
}
