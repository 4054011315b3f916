package main

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/internal/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// A lock of this library has a lease of its own, like a Mutex with a session of its own. A program
// that keeps its sessions makes two requests fewer for each cycle, and all locks of a session end
// together.
var etcdLocks = []contender{
	ours("etcd", newEtcd),
	ours("etcd+cohort", newEtcd),
	{"concurrency", false, etcdMutex},
	{"concurrency-kept", false, etcdKeptMutex},
}

func newEtcd(j job) (locker.Locker, error) {
	client, err := etcdClient(j)
	return etcd.New(client), err
}

func runEtcd(ctx context.Context, b *bench) error {
	addr, err := b.host.start(testserver.Etcd, "--unsafe-no-fsync=false") // it waits for the disk, as in production
	if err != nil {
		return err
	}
	b.etcd = addr
	s := &etcdServer{addr: addr}
	return b.takeTurns(ctx, "etcd", lockScenarios, etcdLocks, s.usage)
}

func etcdClient(j job) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{j.Etcd}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

func etcdMutex(j job) (lock, error) {
	client, err := etcdClient(j)
	return func(ctx context.Context, key string) (func() error, error) {
		s, err := etcdSession(client)
		if err != nil {
			return nil, err
		}
		m := concurrency.NewMutex(s, key)
		if err := m.Lock(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return func() error { return errors.Join(m.Unlock(ctx), s.Close()) }, nil
	}, err
}

// etcdKeptMutex keeps a session for each caller at a time.
func etcdKeptMutex(j job) (lock, error) {
	client, err := etcdClient(j)
	var mu sync.Mutex
	var kept []*concurrency.Session
	return func(ctx context.Context, key string) (func() error, error) {
		mu.Lock()
		var s *concurrency.Session
		if n := len(kept); n > 0 {
			s, kept = kept[n-1], kept[:n-1]
		}
		mu.Unlock()
		if s == nil {
			var err error
			if s, err = etcdSession(client); err != nil {
				return nil, err
			}
		}
		m := concurrency.NewMutex(s, key)
		if err := m.Lock(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return func() error {
			err := m.Unlock(ctx)
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, s)
			return err
		}, nil
	}, err
}

func etcdSession(client *clientv3.Client) (*concurrency.Session, error) {
	return concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
}

type etcdServer struct {
	addr  string
	asked int64
}

// usage counts the messages that the server has received from clients. A stream has one for each
// request on it. This query, which is none, is added.
func (s *etcdServer) usage(ctx context.Context) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/metrics", nil)
	if err != nil {
		return u, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return u, err
	}
	defer resp.Body.Close()
	var messages, cpu float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		name, _, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		var sum *float64
		switch name {
		case "grpc_server_msg_received_total":
			sum = &messages
		case "process_cpu_seconds_total":
			sum = &cpu
		default:
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return u, err
		}
		*sum += n
	}
	s.asked++
	return usage{int64(messages) + s.asked, time.Duration(cpu * float64(time.Second))}, lines.Err()
}
