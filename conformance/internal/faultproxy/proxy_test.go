package faultproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lineServer answers every line "x" with "did x", and records what it has done.
type lineServer struct {
	addr string

	mu   sync.Mutex
	done []string
	over int // connections that have ended
}

func newLineServer(t *testing.T) *lineServer {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &lineServer{addr: ln.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					s.mu.Lock()
					s.done = append(s.done, lines.Text())
					s.mu.Unlock()
					fmt.Fprintf(conn, "did %s\n", lines.Text())
				}
				s.mu.Lock()
				s.over++
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return s
}

func (s *lineServer) did() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.done...)
}

func (s *lineServer) ended() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// lineClient is a client of a lineServer.
type lineClient struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *lineClient {
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &lineClient{t, conn, bufio.NewReader(conn)}
}

func (c *lineClient) send(s string) {
	_, err := io.WriteString(c, s)
	require.NoError(c.t, err)
}

// receive returns a line, or what came before the connection ended.
func (c *lineClient) receive() (string, error) {
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	return c.in.ReadString('\n')
}

func (c *lineClient) ask(line string) {
	c.send(line + "\n")
	got, err := c.receive()
	require.NoError(c.t, err)
	require.Equal(c.t, "did "+line+"\n", got)
}

// silent reports whether nothing arrives for a moment.
func (c *lineClient) silent() bool {
	c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	_, err := c.in.Peek(1)
	netErr, ok := err.(net.Error)
	return ok && netErr.Timeout()
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 20*time.Second, time.Millisecond, what)
}

func await(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(20 * time.Second):
		require.Fail(t, "it does not come", what)
	}
}

func proxied(t *testing.T) (*lineServer, *Proxy) {
	t.Parallel()
	s := newLineServer(t)
	return s, New(t, s.addr)
}

func TestProxyForwards(t *testing.T) {
	s, p := proxied(t)
	c, d := dial(t, p), dial(t, p)
	c.ask("a")
	d.ask("b")
	c.ask("c")
	assert.Equal(t, []string{"a", "b", "c"}, s.did())
	requests, connections := p.Count()
	assert.Equal(t, 3, requests)
	assert.Equal(t, 2, connections)
	c.Close()
	eventually(t, func() bool { return s.ended() == 1 }, "the server sees that a client hung up")
}

// A pipeline and a request in several writes are one request each.
func TestProxyCountsBursts(t *testing.T) {
	_, p := proxied(t)
	c := dial(t, p)
	c.send("a\nb\nc\n")
	for _, want := range []string{"did a\n", "did b\n", "did c\n"} {
		got, err := c.receive()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	requests, _ := p.Count()
	assert.Equal(t, 1, requests)
	c.send("hal")
	eventually(t, func() bool { n, _ := p.Count(); return n == 2 }, "the first half has arrived")
	c.send("f\n")
	got, err := c.receive()
	require.NoError(t, err)
	assert.Equal(t, "did half\n", got)
	requests, _ = p.Count()
	assert.Equal(t, 2, requests)
}

func TestProxyDropsTheNthReply(t *testing.T) {
	s, p := proxied(t)
	c, d := dial(t, p), dial(t, p)
	c.ask("warm")
	f := p.Arm(DropReply, 3)
	c.ask("a")
	d.ask("b")
	assert.False(t, f.Acted())
	c.send("c\n")
	got, err := c.receive()
	assert.Equal(t, io.EOF, err)
	assert.Empty(t, got)
	assert.True(t, f.Acted())
	await(t, f.Answered, "the server has answered")
	assert.Equal(t, []string{"warm", "a", "b", "c"}, s.did())
	d.ask("d") // the other connection knows nothing of it
	dial(t, p).ask("e")
}

// A client that repeats its request at once gets no reply either.
func TestProxyDropsEachReply(t *testing.T) {
	s, p := proxied(t)
	dial(t, p).ask("warm")
	p.ArmEach(DropReply, []string{"new"})
	for range 20 {
		c := dial(t, p)
		c.ask("old")
		c.send("new\n")
		_, err := c.receive()
		assert.Equal(t, io.EOF, err)
	}
	p.Disarm()
	dial(t, p).ask("new")
	assert.Len(t, s.did(), 1+2*20+1)
}

// Requests for something else do not count, unless they are sent together with those that do.
func TestProxyCountsNoOthers(t *testing.T) {
	_, p := proxied(t)
	c := dial(t, p)
	f := p.ArmBut(DropReply, 3, []string{"new"}, []string{"old"})
	for _, line := range []string{"hello", "old 1", "new 1", "old 2"} {
		c.ask(line)
	}
	assert.False(t, f.Acted())
	c.send("old and new\n")
	_, err := c.receive()
	assert.Equal(t, io.EOF, err)
	assert.True(t, f.Acted())
}

// All of a pipeline is executed before its reply is dropped, and none of it is answered.
func TestProxyDropsTheReplyToAPipeline(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Arm(DropReply, 1)
	c.send("a\nb\nc\n")
	_, err := c.receive()
	assert.Equal(t, io.EOF, err)
	assert.Equal(t, []string{"warm", "a", "b", "c"}, s.did())
}

func TestProxyHoldsARequest(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	f := p.Arm(HoldRequest, 2)
	c.ask("a")
	c.send("b\n")
	await(t, f.Hit, "the request has come")
	assert.True(t, c.silent())
	assert.Equal(t, []string{"warm", "a"}, s.did())
	dial(t, p).ask("beside")
	f.Release()
	got, err := c.receive()
	require.NoError(t, err)
	assert.Equal(t, "did b\n", got)
	await(t, f.Answered, "the server has answered")
	c.ask("c")
}

// A request that is held back is delivered even if the client has hung up.
func TestProxyDeliversLateForAClientThatHungUp(t *testing.T) {
	t.Parallel()
	for _, linger := range []int{-1, 0} { // FIN and RST
		s := newLineServer(t)
		p := New(t, s.addr)
		c := dial(t, p)
		c.ask("warm")
		f := p.Arm(HoldRequest, 1)
		c.send("late\n")
		await(t, f.Hit, "the request has come")
		require.NoError(t, c.Conn.(*net.TCPConn).SetLinger(linger))
		c.Close()
		dial(t, p).ask("meanwhile")
		f.Release()
		await(t, f.Answered, "the server has answered")
		assert.Equal(t, []string{"warm", "meanwhile", "late"}, s.did())
		eventually(t, func() bool { return s.ended() == 1 }, "then the server sees the end")
	}
}

func TestProxyHoldsAReply(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	f := p.Arm(HoldReply, 1)
	c.send("a\n")
	await(t, f.Hit, "the reply has come")
	assert.Equal(t, []string{"warm", "a"}, s.did())
	assert.True(t, c.silent())
	f.Release()
	got, err := c.receive()
	require.NoError(t, err)
	assert.Equal(t, "did a\n", got)
	c.ask("b")
}

func TestProxyDeliversHalfAReply(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Arm(HalfReply, 1)
	c.send("abcd\n")
	got, err := c.receive()
	assert.Equal(t, io.EOF, err)
	assert.Equal(t, "did ", got)
	assert.Equal(t, []string{"warm", "abcd"}, s.did())
}

func TestProxyDeliversGarbage(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Arm(GarbageReply, 1)
	c.send("a\n")
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, string(garbage), string(got))
	assert.Equal(t, []string{"warm", "a"}, s.did())
}

func TestProxyResetsWithinARequest(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	f := p.Arm(ResetRequest, 1)
	c.send("abcdefg\n")
	_, err := c.receive()
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	await(t, f.Answered, "nothing more comes")
	eventually(t, func() bool { return s.ended() == 1 }, "the server's side has ended")
	assert.Equal(t, "abcd", strings.Join(s.did()[1:], "|"), "the line was cut in the middle")
}

func TestProxyEndsInGoodOrder(t *testing.T) {
	for kind, want := range map[Kind]string{CloseRequest: "", GarbageRequest: string(garbage)} {
		t.Run(kind.String(), func(t *testing.T) {
			s, p := proxied(t)
			c := dial(t, p)
			c.ask("warm")
			f := p.Arm(kind, 1)
			c.send("a\n")
			await(t, f.Answered, "nothing more comes")
			c.send("b\n") // a reply is still read after this
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			assert.Equal(t, want, string(got))
			c.Close()
			eventually(t, func() bool { return s.ended() == 1 }, "the server's side has ended")
			assert.Equal(t, []string{"warm"}, s.did())
		})
	}
}

func TestProxyHangs(t *testing.T) {
	s, p := proxied(t)
	c, gone := dial(t, p), dial(t, p)
	c.ask("warm")
	gone.ask("up")
	p.Hang()
	p.Hang()
	c.send("a\n")
	gone.send("late\n")
	gone.Close()
	d := dial(t, p) // accepted
	d.send("b\n")
	assert.True(t, c.silent())
	assert.True(t, d.silent())
	assert.Equal(t, []string{"warm", "up"}, s.did())
	p.Heal(t)
	for _, each := range []*lineClient{c, d} {
		got, err := each.receive()
		require.NoError(t, err)
		assert.Contains(t, got, "did ")
	}
	eventually(t, func() bool { return len(s.did()) == 5 }, "what was sent is done in the end")
}

func TestProxyCuts(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Cut()
	_, err := c.receive()
	assert.Error(t, err)
	eventually(t, func() bool { return s.ended() == 1 }, "the server sees it too")
	dial(t, p).ask("again")
}

func TestProxySlams(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Slam()
	for range 3 {
		d := dial(t, p)
		_, err := d.receive()
		assert.Error(t, err)
	}
	_, connections := p.Count()
	assert.Equal(t, 4, connections)
	p.Heal(t)
	dial(t, p).ask("again")
	assert.Equal(t, []string{"warm", "again"}, s.did())
}

func TestProxyRefuses(t *testing.T) {
	_, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Refuse()
	_, err := c.receive()
	assert.Error(t, err)
	_, err = net.Dial("tcp", p.Addr)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Heal(t)
	dial(t, p).ask("again")
}

func TestProxyDelays(t *testing.T) {
	_, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Delay(20 * time.Millisecond)
	start := time.Now()
	c.ask("a")
	assert.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond, "there and back")
	p.Heal(t)
	c.ask("b")
}

// If the backend is down, the connection ends.
func TestProxyBeforeADeadBackend(t *testing.T) {
	t.Parallel()
	p := New(t, "127.0.0.1:1") // on which no server listens
	_, err := dial(t, p).receive()
	assert.Error(t, err)
}

// close returns in any state.
func TestProxyEnds(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p)
	c.ask("warm")
	p.Arm(DropReply, 1)
	p.Disarm()
	c.ask("kept")
	held := p.Arm(HoldRequest, 1)
	c.send("held\n")
	await(t, held.Hit, "the request has come")
	d := dial(t, p)
	heldReply := p.Arm(HoldReply, 1)
	d.send("reply\n")
	await(t, heldReply.Hit, "the reply has come")
	p.Hang()
	dial(t, p).send("hung\n")
	p.close()
	_, err := c.receive()
	assert.Error(t, err)
	assert.Equal(t, []string{"warm", "kept", "reply"}, s.did())
}
