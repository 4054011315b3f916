package stampede

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// views reads the events of a page until one fits.
func views(t *testing.T, url string, fits func(view) bool) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var v view
		require.NoError(t, json.Unmarshal([]byte(data), &v))
		if fits(v) {
			return
		}
	}
	require.Fail(t, "the stream has ended", "%v", lines.Err())
}

func post(t *testing.T, url, body string, header ...string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/controls", strings.NewReader(body))
	require.NoError(t, err)
	if len(header) > 0 {
		request.Header.Set(header[0], header[1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// Rounds follow each other on a real server while a page is open, with the settings of the page.
func TestRoundsOnPage(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	p, url := programtest.StartPage(t, "-backend", "redis://"+redis.Addr, "-processes", "3", "-goroutines", "4", "-load", "5ms")
	status, answer := post(t, url, `{"goroutines": 6, "load": 20}`)
	require.Equal(t, http.StatusNoContent, status, answer)
	views(t, url, func(v view) bool { return v.Round >= 2 })
	views(t, url, func(v view) bool { // late
		require.Equal(t, "redis://"+redis.Addr, v.Backend)
		require.Len(t, v.Strategies, len(strategies))
		for _, s := range v.Strategies {
			require.Len(t, s.Processes, 3)
			require.GreaterOrEqual(t, len(s.History), 2)
		}
		for i, s := range v.Strategies {
			for _, f := range s.History {
				require.GreaterOrEqual(t, f.LastMS, 20.0)
				require.Positive(t, f.Requests)
				if strategies[i].once {
					require.EqualValues(t, 1, f.Queries)
				}
			}
		}
		return true
	})

	// A server that goes away stops the rounds, but not the page.
	redis.Stop()
	views(t, url, func(v view) bool { return v.Problem != "" && !v.Playing })
	redis.Restart()
	status, answer = post(t, url, `{"playing": true}`)
	require.Equal(t, http.StatusNoContent, status, answer)
	round := 0
	views(t, url, func(v view) bool {
		if round == 0 {
			round = v.Round + 2
		}
		return v.Round >= round
	})
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.Status(t), "%s", &p.Err)
	p.RequireNothingLeft(t)
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	p, url := programtest.StartPage(t, "-processes", "1", "-goroutines", "300", "-load", "0s")
	for body, message := range map[string]string{
		``:                    "controls: EOF",
		`{`:                   "controls: unexpected EOF",
		`[]`:                  "controls: json: cannot unmarshal array",
		`{"goroutines": 0}`:   "goroutines 0 is not between 1 and 300",
		`{"goroutines": 301}`: "goroutines 301 is not between 1 and 300",
		`{"goroutines": 1.5}`: "controls: json: cannot unmarshal number 1.5",
		`{"load": -1}`:        "load -1 is not between 0 and 3000",
		`{"load": 3001}`:      "load 3001 is not between 0 and 3000",
		`{"speed": 1}`:        `controls: json: unknown field "speed"`,
		`{"load": ` + strings.Repeat("1", 2000) + `}`: "controls: http: request body too large",
		`{"load": 5, "goroutines": 0}`:                "goroutines 0 is not between 1 and 300",
	} {
		status, answer := post(t, url, body)
		assert.Equal(t, http.StatusBadRequest, status, body)
		assert.True(t, strings.HasPrefix(answer, message), "%s: %s", body, answer)
		assert.Equal(t, 1, strings.Count(answer, "\n"), answer)
	}
	views(t, url, func(v view) bool { assert.EqualValues(t, 0, v.Load); return true })

	status, _ := post(t, url, `{}`, "Sec-Fetch-Site", "cross-site")
	assert.Equal(t, http.StatusForbidden, status, "another page may not use the controls")
	for path, status := range map[string]int{"/": 200, "/script.js": 200, "/nothing": 404, "/controls": 404, "/../go.mod": 404} {
		response, err := http.Get(url + path)
		require.NoError(t, err)
		response.Body.Close()
		assert.Equal(t, status, response.StatusCode, path)
	}
	require.NoError(t, p.Process.Signal(os.Interrupt))
	require.Zero(t, p.Status(t), "%s", &p.Err)
	p.RequireNothingLeft(t)
}

// Clients that do not finish a request, or send none, do not keep the program from ending well.
func TestUnfinishedRequests(t *testing.T) {
	t.Parallel()
	p, url := programtest.StartPage(t, "-processes", "1")
	for _, request := range []string{
		"",
		"POST /controls HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
	} {
		client, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		defer client.Close()
		if request == "" {
			continue
		}
		_, err = io.WriteString(client, request)
		require.NoError(t, err)
		line, err := bufio.NewReader(client).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 100 Continue\r\n", line, "it waits for the rest")
	}
	require.NoError(t, p.Process.Signal(os.Interrupt))
	require.Zero(t, p.Status(t), "%s", &p.Err)
	p.RequireNothingLeft(t)
}

func TestBadAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for address, message := range map[string]string{
		"":                      `-http "" is not host:port, for instance :8080`,
		"8080":                  `-http "8080" is not host:port`,
		":":                     `-http ":" is not host:port`,
		":http":                 `-http ":http" is not host:port`,
		":65536":                `-http ":65536" is not host:port`,
		"::1:80":                `-http "::1:80" is not host:port`,
		"http://:80":            `-http "http://:80" is not host:port`,
		"192.0.2.1:80":          "cannot serve the page: listen tcp 192.0.2.1:80: ",
		taken.Addr().String():   "cannot serve the page: listen tcp " + taken.Addr().String() + ": ",
		"no-such-host.test.:80": "cannot serve the page: listen tcp: lookup no-such-host.test",
	} {
		p := programtest.Start(t, "-http", address)
		assert.Equal(t, 2, p.Status(t), address)
		assert.Equal(t, 1, strings.Count(p.Err.String(), "\n"), p.Err.String())
		assert.Contains(t, p.Err.String(), message)
		assert.Empty(t, p.Out.String())
		p.RequireNothingLeft(t)
	}
	p := programtest.Start(t, "-http", ":0", "-rounds", "3")
	assert.Equal(t, 2, p.Status(t))
	assert.Contains(t, p.Err.String(), "-rounds and -http exclude each other")
}
