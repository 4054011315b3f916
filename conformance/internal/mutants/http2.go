package mutants

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/memory"
)

// http2Lock is a correct Locker on a server that speaks HTTP/2: a connection that all calls share, a
// client that pings by itself and that resets a stream when its context ends, which the server may
// learn too late. The mutants on HTTP/2 break it in one way each.
type http2Lock struct {
	client *http.Client
	url    string
	calls  *inflight.Calls
	line   *localQueue // of the waiters, of which only the first asks
}

// rpcTimeout bounds a call that its caller may have left behind.
const rpcTimeout = 8 * time.Second

// unencrypted is HTTP/2 without TLS and nothing else.
func unencrypted() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func newHTTP2Lock(tb testing.TB, addr string) http2Lock {
	transport := &http.Transport{
		Protocols:       unencrypted(),
		IdleConnTimeout: 5 * time.Second,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 100 * time.Millisecond, PingTimeout: time.Minute},
	}
	tb.Cleanup(transport.CloseIdleConnections)
	return http2Lock{&http.Client{Transport: transport}, "http://" + addr + "/", new(inflight.Calls), &localQueue{m: make(map[string][]chan struct{})}}
}

// post sends a request. The caller closes the body of the response.
func (l http2Lock) post(ctx context.Context, command, key, token string, ttl time.Duration) (io.ReadCloser, error) {
	form := url.Values{"key": {key}, "token": {token}, "ttl": {strconv.FormatInt(int64(ttl), 10)}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+command, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := l.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

// ask sends a request and returns the body of the response.
func (l http2Lock) ask(ctx context.Context, command, key, token string, ttl time.Duration) (string, error) {
	body, err := l.post(ctx, command, key, token, ttl)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// asks is ask for an answer that is true or false.
func (l http2Lock) asks(ctx context.Context, command, key, token string, ttl time.Duration) (bool, error) {
	text, err := l.ask(ctx, command, key, token, ttl)
	if err != nil {
		return false, err
	}
	if text != "true" && text != "false" {
		return false, fmt.Errorf("unexpected response %q", text)
	}
	return text == "true", nil
}

// leaving runs an operation for token that its caller may leave behind, and that later ones for
// token wait for. It may outlive ctx.
func leaving[T any](ctx context.Context, l http2Lock, token string, call func(ctx context.Context) (T, error)) (v T, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	if err := l.calls.Wait(ctx, token); err != nil {
		return v, err
	}
	return inflight.Do(ctx, l.calls, token, rpcTimeout, func() (T, error) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rpcTimeout)
		defer cancel()
		return call(own)
	})
}

func (l http2Lock) do(ctx context.Context, command, key, token string, ttl time.Duration) (bool, error) {
	return leaving(ctx, l, token, func(ctx context.Context) (bool, error) { return l.asks(ctx, command, key, token, ttl) })
}

func (l http2Lock) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.do(ctx, "acquire", key, token, ttl)
}

func (l http2Lock) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.do(ctx, "extend", key, token, ttl)
}

func (l http2Lock) Release(ctx context.Context, key, token string) (bool, error) {
	return l.do(ctx, "release", key, token, 0)
}

func (l http2Lock) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	text, err := leaving(ctx, l, token, func(ctx context.Context) (string, error) { return l.ask(ctx, "fence", key, token, 0) })
	if err != nil {
		return 0, false, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, n > 0, err
}

// Wait returns when the server has granted the lock. The grant may be old by then, so it is
// extended.
func (l http2Lock) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	turn := l.line.join(key)
	defer l.line.leave(key, turn)
	select {
	case <-turn:
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
	}
	for held := false; ; held = true {
		start, command := time.Now(), l.Acquire
		if held {
			command = l.Extend
		}
		ok, err := command(ctx, key, token, ttl)
		if ok {
			return start.Add(ttl), nil
		}
		if err == nil {
			held = true
			err = l.granted(ctx, key, token, ttl)
		}
		if err == nil {
			continue
		}
		l.releaseLater(ctx, key, token)
		if ended := over(ctx); ended != nil {
			err = ended
		}
		if held {
			err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
		}
		return time.Time{}, err
	}
}

// granted returns when token holds the lock: the server says so, or it turns out when looking from
// time to time.
func (l http2Lock) granted(ctx context.Context, key, token string, ttl time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan error, 1)
	go func() {
		_, err := l.asks(ctx, "wait", key, token, ttl)
		told <- err
	}()
	for {
		select {
		case err := <-told:
			return err
		case <-time.After(3 * time.Second):
			if ok, err := l.Extend(ctx, key, token, ttl); ok || err != nil {
				return err
			}
		}
	}
}

// releaseLater releases what the server may have granted, or may grant yet, to a waiter that has
// gone: its request may arrive after the first release.
func (l http2Lock) releaseLater(ctx context.Context, key, token string) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rpcTimeout)
	go func() {
		defer cancel()
		for {
			if released, _ := l.Release(own, key, token); released || linger(own, 50*time.Millisecond) != nil {
				return
			}
		}
	}()
}

// Watch reads a stream in which the server sends a byte for each release.
func (l http2Lock) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stream, err := l.subscribe(ctx, key)
	if err != nil {
		return nil, errors.Join(over(ctx), err)
	}
	ch := make(chan struct{}, 1)
	go func() {
		for {
			if _, err := stream.ReadByte(); err == nil {
				poke(ch)
				continue
			}
			for {
				if linger(ctx, 20*time.Millisecond) != nil {
					return
				}
				if stream, err = l.subscribe(ctx, key); err == nil {
					break
				}
			}
			poke(ch) // it may have missed a release
		}
	}()
	return ch, nil
}

// subscribe returns a stream of releases, which is live.
func (l http2Lock) subscribe(ctx context.Context, key string) (*bufio.Reader, error) {
	body, err := l.post(ctx, "watch", key, "", 0)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { body.Close() })
	stream := bufio.NewReader(body)
	_, err = stream.ReadByte()
	return stream, err
}

// OnHTTP2 is the configuration of Lockers on a new server.
func OnHTTP2[L locker.Locker](create func(l http2Lock) L) func(tb testing.TB) harness.Config {
	return func(tb testing.TB) harness.Config {
		return harness.Config{
			Addr: newHTTP2Server(tb),
			New:  func(tb testing.TB, addr string) locker.Locker { return create(newHTTP2Lock(tb, addr)) },
		}
	}
}

// NewHTTP2 returns a correct Locker.
func NewHTTP2(l http2Lock) locker.Locker { return l }

// newHTTP2Server starts a server with locks in memory, and returns its address.
func newHTTP2Server(tb testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{
		Handler:   http2Handler{memory.New()},
		Protocols: unencrypted(),
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 1000},
	}
	go server.Serve(ln)
	tb.Cleanup(func() { server.Close() })
	return ln.Addr().String()
}

// http2Handler executes a command in one step. One that waits, or watches, goes on until the stream
// ends.
type http2Handler struct{ locks *memory.Locker }

func (h http2Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, token := r.FormValue("key"), r.FormValue("token")
	ttl, _ := strconv.ParseInt(r.FormValue("ttl"), 10, 64)
	ctx := r.Context()
	once := context.WithoutCancel(ctx) // a request that has arrived is executed
	var answer any
	var err error
	switch r.URL.Path {
	case "/acquire":
		answer, err = h.locks.Acquire(once, key, token, time.Duration(ttl))
	case "/extend":
		answer, err = h.locks.Extend(once, key, token, time.Duration(ttl))
	case "/release":
		answer, err = h.locks.Release(once, key, token)
	case "/fence":
		answer, _, err = h.locks.Fence(once, key, token)
	case "/inspect":
		var info locker.Info
		info, err = h.locks.Inspect(once, key)
		answer = writeInfo(info)
	case "/list":
		h.list(ctx, w, key, token)
		return
	case "/holder":
		var info locker.Info
		info, err = h.locks.Inspect(once, key)
		answer = info.Token
	case "/delete":
		_, err = locker.Break(once, h.locks, key)
		answer = err == nil
		if errors.Is(err, locker.ErrNotHeld) {
			err = nil
		}
	case "/wait":
		_, err = h.locks.Wait(ctx, key, token, time.Duration(ttl))
		answer = err == nil
	case "/watch":
		h.watch(ctx, w, key)
		return
	default:
		err = errors.New("no such command")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, answer)
}

func (h http2Handler) watch(ctx context.Context, w http.ResponseWriter, key string) {
	ch, err := h.locks.Watch(ctx, key)
	for err == nil {
		if _, err = w.Write([]byte("\n")); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return
		}
	}
}
