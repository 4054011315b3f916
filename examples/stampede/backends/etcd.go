package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func etcdClient(host string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{host}, DialTimeout: stampede.Patience, Logger: zap.NewNop()})
}

func connectEtcd(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	client, err := etcdClient(a.Host)
	return etcdCache{client}, etcd.New(client), err
}

// etcdCache gives each value a lease, which ends it.
type etcdCache struct{ client *clientv3.Client }

func (c etcdCache) Get(ctx context.Context, key string) (string, bool, error) {
	found, err := c.client.Get(ctx, key)
	if err != nil || found.Count == 0 {
		return "", false, err
	}
	return string(found.Kvs[0].Value), true, nil
}

func (c etcdCache) Set(ctx context.Context, key, v string) error {
	_, err := c.put(ctx, key, v)
	return err
}

func (c etcdCache) Add(ctx context.Context, key, v string) (bool, error) {
	return c.put(ctx, key, v, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
}

func (c etcdCache) put(ctx context.Context, key, v string, when ...clientv3.Cmp) (bool, error) {
	lease, err := c.client.Grant(ctx, int64(stampede.FreshFor.Seconds()))
	if err != nil {
		return false, err
	}
	resp, err := c.client.Txn(ctx).If(when...).Then(clientv3.OpPut(key, v, clientv3.WithLease(lease.ID))).Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

type etcdServer struct {
	client *clientv3.Client
	host   string
	asked  int64
}

func openEtcd(ctx context.Context, a stampede.Address) (stampede.Server, stampede.Address, error) {
	client, err := etcdClient(a.Host)
	if err != nil {
		return nil, a, err
	}
	ctx, cancel := context.WithTimeout(ctx, stampede.Patience)
	defer cancel()
	if _, err := client.Status(ctx, a.Host); err != nil {
		client.Close()
		return nil, a, err
	}
	return &etcdServer{client: client, host: a.Host}, a, nil
}

// Expire revokes the lease of the value, as etcd does at its end.
func (s *etcdServer) Expire(ctx context.Context, key string) error {
	s.asked++
	found, err := s.client.Get(ctx, key)
	if err != nil || found.Count == 0 {
		return err
	}
	s.asked++
	_, err = s.client.Revoke(ctx, clientv3.LeaseID(found.Kvs[0].Lease))
	return err
}

// Requests counts the messages from clients, of which a stream has one for each request, less those
// of the parent.
func (s *etcdServer) Requests(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, stampede.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var sum float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, _ := strings.Cut(lines.Text(), "} "); strings.HasPrefix(name, "grpc_server_msg_received_total{") {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			sum += n
		}
	}
	return int64(sum) - s.asked, lines.Err()
}

func (s *etcdServer) Close() { s.client.Close() }
