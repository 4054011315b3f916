//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A password gets to the server from each source, and nowhere else.
func TestPasswords(t *testing.T) {
	t.Parallel()
	const password = "pa/ss w@rd?"
	srv := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", password).Err())
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))

	run := func(status int, env []string, flags ...string) *program {
		args := append(append([]string{"run", "--key", "k", "--skip"}, flags...), "--", "sh", "-c", "ps -o args= -p $$; env")
		return locked(t, status, env, args...)
	}
	for _, scheme := range []string{"redis", "redigo"} {
		plain := scheme + "://" + srv.Addr
		full := scheme + "://:" + url.PathEscape(password) + "@" + srv.Addr
		wrong := scheme + "://:wr0ng@" + srv.Addr
		for _, p := range []*program{
			run(0, nil, "-b", full),
			run(0, nil, "-b", plain, "--password-file", file),
			run(0, []string{"LOCKER_BACKEND=" + plain, "LOCKER_PASSWORD_FILE=" + file}),
			run(statusUnavailable, nil, "-b", wrong),
			run(statusUnavailable, nil, "-b", plain),
			run(statusUnavailable, []string{"LOCKER_PASSWORD=wr0ng"}, "-b", plain),
		} {
			for _, out := range []string{p.stdout.String(), p.stderr.String()} {
				require.NotContains(t, out, "pa/ss")
				require.NotContains(t, out, url.PathEscape(password))
				if p.ProcessState.ExitCode() != 0 {
					require.NotContains(t, out, "wr0ng")
					requireOneLine(t, p)
					require.Contains(t, out+p.stderr.String(), "--password-file")
				}
			}
		}
		run(0, []string{"LOCKER_PASSWORD=" + password}, "-b", plain)
		run(0, []string{"LOCKER_BACKEND=" + full})
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, cert, key := certificate(t, dir)
	testserver.Redis(t).Stop() // skips the test if there is none
	out, _ := exec.CommandContext(t.Context(), "redis-server", "--port", "0", "--tls-port", "1").CombinedOutput()
	if !strings.Contains(string(out), "No tls-cert-file configured") {
		t.Skipf("redis-server is built without TLS: %s", out)
	}
	srv := testserver.Redis(t, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca)
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	var host string
	require.Eventually(t, func() bool { // another process may take the port first
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return false
		}
		host = free.Addr().String()
		_ = free.Close()
		return admin.ConfigSet(t.Context(), "tls-port", strconv.Itoa(free.Addr().(*net.TCPAddr).Port)).Err() == nil
	}, long, 10*time.Millisecond)
	for _, scheme := range []string{"rediss", "redigos"} {
		for _, options := range []string{
			"?ca=" + ca + "&cert=" + cert + "&key=" + key,
			"?ca=" + ca + "&cert=" + cert + "&key=" + key + "&server-name=redis.example",
			"?insecure=true&cert=" + cert + "&key=" + key,
		} {
			locked(t, 0, nil, "run", "-b", scheme+"://"+host+options, "--key", "k", "true")
		}
		p := locked(t, statusUnavailable, nil, "run", "-b", scheme+"://"+host+"?cert="+cert+"&key="+key, "--key", "k", "true")
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), "ca=FILE")
		p = locked(t, statusUnavailable, nil, "run", "-b", scheme+"://"+host+"?ca="+ca+"&server-name=other", "--key", "k", "true")
		requireOneLine(t, p)
	}
}

func TestMemcacheTLS(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificate(t, t.TempDir())
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	server := testserver.Memcached(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	require.NoError(t, err)
	var links sync.WaitGroup
	links.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			links.Go(func() {
				defer client.Close()
				backend, err := net.Dial("tcp", server.Addr)
				if err != nil {
					return
				}
				defer backend.Close()
				links.Go(func() { _, _ = io.Copy(client, backend); _ = client.Close() })
				_, _ = io.Copy(backend, client)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); links.Wait() })
	url := "memcaches://" + listener.Addr().String()
	for _, options := range []string{"?ca=" + ca, "?ca=" + ca + "&server-name=redis.example", "?insecure=true"} {
		locked(t, 0, nil, "run", "-b", url+options, "--key", "k", "true")
	}
	for _, options := range []string{"", "?ca=" + ca + "&server-name=other"} {
		p := locked(t, statusUnavailable, nil, "run", "-b", url+options, "--key", "k", "true")
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), "certificate")
	}
}

// certificate writes a certificate for 127.0.0.1 and redis.example, which is its own authority.
func certificate(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"redis.example"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	der, err = x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	return cert, cert, key
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisCluster(t, 3)
	for _, key := range []string{"a", "b", "c", "d"} {
		p := locked(t, 0, nil, "run", "-b", "redis+cluster://"+nodes[0]+","+nodes[1], "--key", key, "sh", "-c", "echo $LOCKER_FENCE")
		require.NotEqual(t, "\n", p.stdout.String())
	}
	failed := 0
	for _, key := range []string{"a", "b", "c", "d"} { // at least one of them is on another node
		p := start(t, nil, "run", "-b", "redis://"+nodes[0], "--key", key, "true")
		if p.status(t) == statusUnavailable {
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), "use redis+cluster://")
			failed++
		}
	}
	require.Positive(t, failed)
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	sentinel := testserver.RedisSentinel(t, srv.Addr, time.Minute).Addr
	p := start(t, nil, "run", "-b", "redis+sentinel://"+sentinel+"/m", "--key", "k", "sh", "-c", "echo started; exec sleep 1000")
	p.prints(t, "started")
	require.NotEmpty(t, inspect(t, redisLocker(t, srv.Addr), "k").Token)
	require.NoError(t, p.Process.Signal(os.Interrupt))
	require.Equal(t, 130, p.status(t))

	p = locked(t, statusUnavailable, nil, "run", "-b", "redis+sentinel://"+sentinel+"/other", "--key", "k", "true")
	requireOneLine(t, p)
}
