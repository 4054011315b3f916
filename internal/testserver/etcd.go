package testserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// peerSpare is the distance from the port for clients to that for the other members.
const peerSpare = 10_000

var etcdKind = kind{
	program: "etcd",
	args: func(s *Server) []string {
		client := "http://" + s.Addr
		peer := peerURL(s.port)
		return []string{
			"--name", strconv.Itoa(s.port), "--data-dir", filepath.Join(s.dir, "data"),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", initialCluster(s.port), "--logger", "zap",
		}
	},
	dir: func(addr string) (string, error) {
		var vars struct{ Cmdline []string }
		if err := getJSON("http://"+addr+"/debug/vars", &vars); err != nil {
			return "", err
		}
		for i, arg := range vars.Cmdline[:max(len(vars.Cmdline)-1, 0)] {
			if arg == "--data-dir" {
				return filepath.Dir(vars.Cmdline[i+1]), healthy(addr)
			}
		}
		return "", fmt.Errorf("no --data-dir in %q", vars.Cmdline)
	},
	spare: peerSpare,
}

// Etcd starts an etcd that is a cluster of its own. args are added to its command line, for
// instance "--quota-backend-bytes", "1000000". It keeps its data over a Restart, but does not wait
// for the disk, so a test does not depend on its speed.
func Etcd(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, etcdKind, append([]string{"--unsafe-no-fsync"}, args...))
}

// EtcdCluster starts a cluster of so many members, and returns when it has a leader.
func EtcdCluster(tb testing.TB, members int, args ...string) []*Server {
	tb.Helper()
	path, err := exec.LookPath(etcdKind.program)
	if err != nil {
		Etcd(tb) // skips or fails
	}
	var servers []*Server
	for range 5 {
		servers = nil
		var ports []int
		for range members {
			port, err := freePort(peerSpare)
			if err != nil {
				tb.Fatalf("testserver: %v", err)
			}
			ports = append(ports, port)
		}
		more := append([]string{"--unsafe-no-fsync", "--initial-cluster", initialCluster(ports...)}, args...)
		results := make(chan error, members)
		for _, port := range ports {
			s := &Server{tb: tb, kind: etcdKind, path: path, dir: tb.TempDir(), port: port, args: more}
			s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			servers = append(servers, s)
			tb.Cleanup(s.Stop)
			go func() { results <- s.launch() }() // none answers before there is a majority
		}
		err = nil
		for range members {
			err = errors.Join(err, <-results)
		}
		if err == nil {
			return servers
		}
		for _, s := range servers {
			s.Stop()
		}
		if !errors.Is(err, errExited) {
			break
		}
	}
	tb.Fatalf("testserver: etcd: %v", err)
	return nil
}

func peerURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port+peerSpare) }

func initialCluster(ports ...int) string {
	var members []string
	for _, port := range ports {
		members = append(members, fmt.Sprintf("%d=%s", port, peerURL(port)))
	}
	return strings.Join(members, ",")
}

// healthy returns nil if the member at addr has a leader and commits.
func healthy(addr string) error {
	var health struct{ Health string }
	if err := getJSON("http://"+addr+"/health", &health); err != nil {
		return err
	}
	if health.Health != "true" {
		return fmt.Errorf("etcd at %s is not healthy", addr)
	}
	return nil
}

func getJSON(url string, into any) error {
	client := http.Client{Timeout: answerTime, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
