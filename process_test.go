//go:build unix

package locker_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	holderAddr = "LOCKER_TEST_HOLDER" // set in a process that is to hold the lock on the Redis there
	holderTTL  = 4 * time.Second      // long enough for a keep-alive on a machine that is busy with other tests
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(holderAddr); addr != "" {
		runHolder(addr)
		return
	}
	os.Exit(m.Run())
}

// runHolder is a process that takes the lock, keeps it alive, and says what becomes of it.
func runHolder(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	lease, err := locker.Lock(context.Background(), redisv9.New(client), "k", holderTTL, locker.WithKeepAlive())
	fmt.Println("held", err)
	<-lease.Lost()
	fmt.Println("lost")
	fmt.Println(lease.Unlock(context.Background()))
}

// startHolder starts such a process and returns when it holds the lock, with the lines that it prints next.
func startHolder(t *testing.T, addr string) (*os.Process, <-chan string) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), holderAddr+"="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 10)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Equal(t, "held <nil>", <-lines)
	return cmd.Process, lines
}

func TestKilledHolder(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	holder, _ := startHolder(t, addr)
	time.Sleep(holderTTL + holderTTL/2) // kept alive
	require.NoError(t, holder.Kill())

	_, err := locker.TryLock(t.Context(), redisv9.New(client), "k", time.Minute)
	require.ErrorIs(t, err, locker.ErrHeld, "it was not kept alive")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := locker.Lock(ctx, redisv9.New(client), "k", time.Minute)
	require.NoError(t, err, "not free after its ttl")
	assert.NoError(t, lease.Unlock(ctx))
}

func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	holder, lines := startHolder(t, addr)
	require.NoError(t, holder.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := locker.Lock(ctx, redisv9.New(client), "k", time.Minute)
	require.NoError(t, err)

	require.NoError(t, holder.Signal(syscall.SIGCONT))
	assert.Equal(t, "lost", next(t, lines))
	assert.Equal(t, `locker: unlock "k": the lock is not held`, next(t, lines))
	assert.NoError(t, lease.Unlock(ctx), "the one that was stopped released it")
}

func next(t *testing.T, lines <-chan string) string {
	select {
	case line := <-lines:
		return line
	case <-time.After(30 * time.Second):
		t.Error("the holder says nothing")
		return ""
	}
}
