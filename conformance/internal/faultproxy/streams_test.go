package faultproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func unencrypted() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// streamServer answers a request with body "x" by "did x", and records what it has done. On /each
// it answers each line of the request at once.
type streamServer struct {
	addr string
	mu   sync.Mutex
	done []string
}

func (s *streamServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	do := func(text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done = append(s.done, text)
		fmt.Fprintf(w, "did %s", text)
	}
	if r.URL.Path != "/each" {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			do(r.URL.RawQuery + string(body))
		}
		return
	}
	buf := make([]byte, 100)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			do(string(buf[:n]))
			http.NewResponseController(w).Flush()
		}
		if err != nil {
			return
		}
	}
}

func (s *streamServer) did() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.done)
}

// streamClient is a client of a streamServer through a proxy. It pings by itself.
type streamClient struct {
	t *testing.T
	*http.Client
	addr string
}

func streamed(t *testing.T) (*streamServer, *Proxy, *streamClient) {
	t.Helper()
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &streamServer{addr: ln.Addr().String()}
	server := &http.Server{Handler: s, Protocols: unencrypted()}
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	p := New(t, s.addr)
	c := newStreamClient(t, p)
	require.Equal(t, "did warm", c.ask("warm"))
	return s, p, c
}

func newStreamClient(t *testing.T, p *Proxy) *streamClient {
	transport := &http.Transport{
		Protocols: unencrypted(),
		HTTP2:     &http.HTTP2Config{SendPingTimeout: 2 * time.Millisecond},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &streamClient{t, &http.Client{Transport: transport}, p.Addr}
}

func (c *streamClient) send(ctx context.Context, text string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr, strings.NewReader(text))
	require.NoError(c.t, err)
	response, err := c.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func (c *streamClient) ask(text string) string {
	c.t.Helper()
	answer, err := c.send(c.t.Context(), text)
	require.NoError(c.t, err)
	return answer
}

type sent struct {
	text string
	err  error
}

// sends sends in the background.
func (c *streamClient) sends(ctx context.Context, text string) <-chan sent {
	result := make(chan sent, 1)
	go func() {
		answer, err := c.send(ctx, text)
		result <- sent{answer, err}
	}()
	return result
}

// What a client sends by itself is no request: only calls count, one each.
func TestStreamsCountCalls(t *testing.T) {
	s, p, c := streamed(t)
	assert.True(t, p.Multiplexes())
	var results []<-chan sent
	for i := range 5 {
		results = append(results, c.sends(t.Context(), fmt.Sprint(i)))
	}
	for i, r := range results {
		assert.Equal(t, sent{text: fmt.Sprint("did ", i)}, <-r)
	}
	time.Sleep(20 * time.Millisecond) // it pings
	response, err := c.Get("http://" + c.addr + "?bare")
	require.NoError(t, err)
	response.Body.Close()
	requests, connections := p.Count()
	assert.Equal(t, 7, requests)
	assert.Equal(t, 1, connections)
	assert.Len(t, s.did(), 7)
}

// Each message on a stream that stays open is a request, and the end of the stream is none.
func TestStreamsCountMessages(t *testing.T) {
	s, p, c := streamed(t)
	body, messages := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.addr+"/each", body)
	require.NoError(t, err)
	result := make(chan *http.Response, 1)
	go func() {
		response, err := c.Do(request)
		assert.NoError(t, err)
		result <- response
	}()
	send := func(text string) {
		_, err := io.WriteString(messages, text)
		require.NoError(t, err)
	}
	send("a")
	response := <-result
	receive := func(want string) {
		t.Helper()
		buf := make([]byte, len(want))
		_, err := io.ReadFull(response.Body, buf)
		require.NoError(t, err)
		require.Equal(t, want, string(buf))
	}
	receive("did a")
	send("b")
	receive("did b")
	f := p.Arm(HoldRequest, 1)
	send("c")
	await(t, f.Hit, "the message has come")
	assert.Equal(t, "did beside", c.ask("beside"))
	assert.Equal(t, []string{"warm", "a", "b", "beside"}, s.did())
	f.Release()
	receive("did c")
	requests, _ := p.Count()
	messages.Close()
	_, err = io.ReadAll(response.Body)
	require.NoError(t, err)
	after, _ := p.Count()
	assert.Equal(t, 5, after)
	assert.Equal(t, after, requests)
}

// A request that is held back holds back its stream alone, and is delivered although the client has
// reset the stream or gone.
func TestStreamsHoldARequest(t *testing.T) {
	s, p, c := streamed(t)
	gone := []struct {
		name string
		do   func(cancel func(), result <-chan sent)
	}{
		{"patient", func(func(), <-chan sent) {}},
		{"canceled", func(cancel func(), result <-chan sent) {
			cancel()
			assert.ErrorIs(t, (<-result).err, context.Canceled)
		}},
		{"closed", func(cancel func(), result <-chan sent) {
			cancel()
			<-result
			c.CloseIdleConnections()
		}},
	}
	for _, g := range gone {
		f := p.Arm(HoldRequest, 2)
		ctx, cancel := context.WithCancel(t.Context())
		assert.Equal(t, "did first", c.ask("first"))
		result := c.sends(ctx, g.name)
		await(t, f.Hit, "the request has come")
		assert.Equal(t, "did other", c.ask("other"))
		g.do(cancel, result)
		assert.Equal(t, "other", s.did()[len(s.did())-1])
		f.Release()
		await(t, f.Answered, "the server has answered")
		assert.Equal(t, g.name, s.did()[len(s.did())-1])
		if g.name == "patient" {
			assert.Equal(t, sent{text: "did patient"}, <-result)
		}
		cancel()
	}
	_, err := c.send(t.Context(), "after")
	require.NoError(t, err)
}

// A request without content is held back with what follows on its connection.
func TestStreamsHoldABareRequest(t *testing.T) {
	s, p, c := streamed(t)
	f := p.Arm(HoldRequest, 1)
	done := make(chan error, 1)
	go func() {
		response, err := c.Get("http://" + c.addr + "?bare")
		if err == nil {
			err = response.Body.Close()
		}
		done <- err
	}()
	await(t, f.Hit, "the request has come")
	assert.Equal(t, []string{"warm"}, s.did())
	f.Release()
	require.NoError(t, <-done)
	assert.Equal(t, []string{"warm", "bare"}, s.did())
}

func TestStreamsHoldAReply(t *testing.T) {
	s, p, c := streamed(t)
	f := p.Arm(HoldReply, 1)
	result := c.sends(t.Context(), "a")
	await(t, f.Hit, "the reply has come")
	assert.Equal(t, []string{"warm", "a"}, s.did())
	assert.Empty(t, result)
	f.Release()
	assert.Equal(t, sent{text: "did a"}, <-result)
	assert.Equal(t, "did b", c.ask("b"))
}

// The connection ends with the fault. A client may notice that only after its call has failed, or
// has returned garbage, so the next call is another client's.
func TestStreamsBreakReplies(t *testing.T) {
	s, p, c := streamed(t)
	for kind, want := range map[Kind]string{DropReply: "", HalfReply: "did ", GarbageReply: string(garbage[:8])} {
		f := p.Arm(kind, 1)
		text, err := c.send(t.Context(), "abcd")
		assert.Equal(t, want, text, kind)
		if kind != GarbageReply { // the content is whole
			assert.Error(t, err, kind)
		}
		await(t, f.Answered, "the server has answered")
		assert.Equal(t, "abcd", s.did()[len(s.did())-1])
		c = newStreamClient(t, p)
		assert.Equal(t, "did again", c.ask("again"))
	}
}

func TestStreamsBreakRequests(t *testing.T) {
	s, p, c := streamed(t)
	for _, kind := range []Kind{ResetRequest, CloseRequest, GarbageRequest} {
		f := p.Arm(kind, 1)
		_, err := c.send(t.Context(), "lost")
		assert.Error(t, err, kind)
		await(t, f.Answered, "nothing more comes")
		c = newStreamClient(t, p)
		assert.Equal(t, "did again", c.ask("again"))
	}
	assert.NotContains(t, s.did(), "lost")
}

// Faults count over all streams of all connections.
func TestStreamsCountOverConnections(t *testing.T) {
	s, p, c := streamed(t)
	other := newStreamClient(t, p)
	other.ask("warm")
	p.Arm(DropReply, 3)
	c.ask("a")
	other.ask("b")
	_, err := c.send(t.Context(), "c")
	assert.Error(t, err)
	other.ask("d")
	assert.Equal(t, []string{"warm", "warm", "a", "b", "c", "d"}, s.did())
}

func TestStreamsDelay(t *testing.T) {
	_, p, c := streamed(t)
	p.Delay(20 * time.Millisecond)
	start := time.Now()
	c.ask("a")
	assert.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond, "there and back")
	p.Heal(t)
	c.ask("b")
}

func TestStreamsHang(t *testing.T) {
	s, p, c := streamed(t)
	p.Hang()
	result := c.sends(t.Context(), "a")
	time.Sleep(20 * time.Millisecond)
	assert.Empty(t, result)
	assert.Equal(t, []string{"warm"}, s.did())
	p.Heal(t)
	assert.Equal(t, sent{text: "did a"}, <-result)
}

// What a client sends on a stream that the server has ended is no request.
func TestStreamsThatAreOver(t *testing.T) {
	t.Parallel()
	s := newStreams(&Link{p: new(Proxy)})
	headers := frame("\x00\x00\x00\x01\x05\x00\x00\x00\x03") // of a whole message
	data := frame("\x00\x00\x01\x00\x00\x00\x00\x00\x03x")
	_, begins, _ := s.begin(headers)
	assert.True(t, begins)
	_, begins, _ = s.begin(data)
	assert.False(t, begins, "it is under way")
	answers, _ := s.answer(headers)
	assert.True(t, answers)
	for _, f := range []frame{headers, data} {
		_, begins, _ = s.begin(f)
		assert.False(t, begins)
		answers, _ = s.answer(f)
		assert.False(t, answers)
	}
	assert.Empty(t, s.open)
}

// Open streams can be silenced alone.
func TestStreamsSilence(t *testing.T) {
	_, p, c := streamed(t)
	body, messages := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.addr+"/each", body)
	require.NoError(t, err)
	go io.WriteString(messages, "a")
	response, err := c.Do(request)
	require.NoError(t, err)
	heard := make(chan string)
	go func() {
		defer close(heard)
		buf := make([]byte, 100)
		for {
			n, err := response.Body.Read(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:n])
		}
	}()
	require.Equal(t, "did a", <-heard)
	require.Equal(t, 1, p.Silence())
	_, err = io.WriteString(messages, "b")
	require.NoError(t, err)
	for range 5 {
		c.ask("beside")
	}
	select {
	case text := <-heard:
		require.Fail(t, "the stream is not silent", text)
	default:
	}
	p.Heal(t)
	c.ask("again")
	require.Equal(t, "did b", <-heard)
	messages.Close()
	_, ok := <-heard
	require.False(t, ok)
}

// A server may send frames, or a part of one, before the client has shown what it speaks.
func TestStreamsAfterAServerThatSpeaksFirst(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	reply := "\x00\x00\x04\x01\x04\x00\x00\x00\x01\x88\x88\x88\x88" + "\x00\x00\x02\x00\x01\x00\x00\x00\x01ok"
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00")
		io.ReadFull(conn, make([]byte, len(preface)))
		io.WriteString(conn, "\x00\x00\x64")
		io.ReadFull(conn, make([]byte, len(request)))
		io.WriteString(conn, reply)
		io.Copy(io.Discard, conn)
	}()
	p := New(t, ln.Addr().String())
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	defer conn.Close()
	settings := make([]byte, 12)
	_, err = io.ReadFull(conn, settings)
	require.NoError(t, err)
	for _, part := range []string{preface[:3], preface[3:], request[:5]} {
		_, err = io.WriteString(conn, part)
		require.NoError(t, err)
		time.Sleep(5 * time.Millisecond)
	}
	f := p.Arm(DropReply, 1)
	_, err = io.WriteString(conn, request[5:])
	require.NoError(t, err)
	await(t, f.Hit, "the reply has come")
	rest, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "\x00\x00\x64", string(rest))
	requests, _ := p.Count()
	assert.Equal(t, 1, requests)
}

// request is a HEADERS frame, its CONTINUATION, and a DATA frame that ends the stream.
const request = "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x83" + "\x00\x00\x01\x09\x04\x00\x00\x00\x01\x86" +
	"\x00\x00\x01\x00\x01\x00\x00\x00\x01x"
