// Dashboard draws otellocker's dashboard from a real run of a service that takes locks and loads
// values, with a redis-server that hangs for a while in the middle. A Prometheus server scrapes the
// service. Dashboard starts the programs redis-server and prometheus, which must be installed.
//
//	go run -C examples/dashboard . -o dashboard.svg -for 3m
//
// The queries are those of otellocker/dashboard.json, and Prometheus answers them. The panels are
// drawn by gonum/plot, not by Grafana.
//
// Where to look: service.go is the service and how it is measured, prometheus.go the queries,
// picture.go the panels.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	out := flag.String("o", "dashboard.svg", "the picture")
	file := flag.String("dashboard", "../../otellocker/dashboard.json", "the dashboard")
	length := flag.Duration("for", 3*time.Minute, "how long the service runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, *out, *length); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, file, out string, length time.Duration) error {
	d, err := readDashboard(file)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "dashboard-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	redisAddr, metricsAddr, prometheusAddr, err := freeAddresses()
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(redisAddr)
	redis, err := start(dir, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "")
	if err != nil {
		return err
	}
	defer redis.end()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, scrapeConfig, metricsAddr), 0o600); err != nil {
		return err
	}
	prometheus, err := start(dir, "prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", prometheusAddr)
	if err != nil {
		return err
	}
	defer prometheus.end()

	for _, addr := range []string{redisAddr, prometheusAddr} {
		if err := answers(ctx, addr); err != nil {
			return err
		}
	}

	// A fifth of the time, in the middle, Redis hangs.
	began := time.Now()
	pause := time.AfterFunc(length*2/5, func() { _ = redis.Process.Signal(syscall.SIGSTOP) })
	resume := time.AfterFunc(length*3/5, func() { _ = redis.Process.Signal(syscall.SIGCONT) })
	defer pause.Stop()
	defer resume.Stop()
	if err := serve(ctx, redisAddr, metricsAddr, length); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	p := prometheusAPI{addr: prometheusAddr, from: began.Add(rateInterval), to: time.Now()}
	return d.draw(ctx, p, out)
}

// freeAddresses returns addresses on which no program listens.
func freeAddresses() (a, b, c string, err error) {
	var found [3]string
	for i := range found {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", "", err
		}
		defer l.Close() // after all are chosen, so that they differ
		found[i] = l.Addr().String()
	}
	return found[0], found[1], found[2], nil
}

// answers waits until a program listens at addr.
func answers(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			return err
		}
	}
}

// server is a child process.
type server struct{ *exec.Cmd }

func start(dir, program string, args ...string) (server, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach it
	log, err := os.Create(filepath.Join(dir, program+".log"))
	if err != nil {
		return server{}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	return server{cmd}, cmd.Start()
}

func (s server) end() {
	_ = s.Process.Kill()
	_ = s.Wait()
}
