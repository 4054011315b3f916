package testserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

var redisKind = kind{
	program: "redis-server",
	args: func(s *Server) []string {
		return []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir,
			"--save", "", "--appendonly", "no",
		}
	},
	pid: func(addr string) (int, error) {
		info, err := redisCommand(addr, "INFO", "server")
		if err != nil {
			return 0, err
		}
		return field(info, "process_id:")
	},
}

var memcachedKind = kind{
	program: "memcached",
	args: func(s *Server) []string {
		args := []string{"-l", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "0"}
		if os.Getuid() == 0 {
			args = append(args, "-u", "root") // or it refuses to start
		}
		return args
	},
	pid: func(addr string) (int, error) {
		stats, err := memcachedStats(addr)
		if err != nil {
			return 0, err
		}
		return field(stats, "STAT pid ")
	},
}

// field finds the line of text that begins with name and returns the number after it.
func field(text, name string) (int, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, fmt.Errorf("no %q in %q", name, text)
}

// answerTime is how long a server may take to answer: under load it may be seconds.
const answerTime = patience / 3

// dial opens a connection whose reads and writes end after answerTime.
func dial(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, answerTime)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// redisCommand sends one command on a connection of its own. It knows the replies of the few
// commands used here: a status or a bulk string, returned as it is, or an error.
func redisCommand(addr string, args ...string) (string, error) {
	conn, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()

	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return "", err
	}

	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	switch line = strings.TrimRight(line, "\r\n"); {
	case strings.HasPrefix(line, "+"):
		return line[1:], nil
	case strings.HasPrefix(line, "$"):
		n, err := strconv.Atoi(line[1:])
		if err != nil || n < 0 {
			return "", fmt.Errorf("%s: unexpected reply %q", args[0], line)
		}
		body := make([]byte, n)
		_, err = io.ReadFull(r, body)
		return string(body), err
	default:
		return "", fmt.Errorf("%s: unexpected reply %q", args[0], line)
	}
}

// memcachedStats returns what the server reports about itself.
func memcachedStats(addr string) (string, error) {
	conn, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return "", err
	}
	var stats strings.Builder
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == "END\r\n" {
			return stats.String(), nil
		}
		stats.WriteString(line)
	}
}
