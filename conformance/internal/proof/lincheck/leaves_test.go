package lincheck

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Wait that gives up leaves the queue in the background. If that takes long, the lock is offered to
// it, and refused to others, although it has returned. That is not linearizable. The rest is as strict
// as before.
func TestWaitThatLeavesLate(t *testing.T) {
	addr := testserver.Redis(t).Addr
	proxy := faultproxy.New(t, addr)
	open := openRedisv9(redisv9.WithBatching(1))
	near, far := open(t, addr), open(t, proxy.Addr)
	var history []Op
	began := time.Now()
	const key = "lincheck/leaves"
	do := func(kind Kind, token string, want Outcome) {
		op := Op{Kind: kind, Token: token, TTL: time.Hour}
		call(t.Context(), 10*time.Second, near, key, &op, began)
		history = append(history, op)
		require.Equal(t, want, op.Outcome, op)
	}

	do(Acquire, "holder", Yes)
	ctx, cancel := context.WithCancel(t.Context())
	wait := Op{Kind: Wait, Token: "waiter", TTL: time.Hour}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		call(ctx, time.Minute, far, key, &wait, began)
	}()
	require.Eventually(t, func() bool {
		info, err := near.(locker.Inspector).Inspect(t.Context(), key)
		return err == nil && info.Waiters == 1
	}, 10*time.Second, time.Millisecond)
	proxy.Hang()
	cancel()
	<-returned
	require.Equal(t, No, wait.Outcome)
	history = append(history, wait)
	do(Release, "holder", Yes)
	do(Acquire, "other", No)
	assert.Equal(t, porcupine.Illegal, Check(history, Leniency{}, time.Minute), "it was refused by nobody")
	assert.Equal(t, porcupine.Ok, Check(history, Leniency{Leaves: true}, time.Minute))

	// Until it has left, or its time to take the lock is over.
	require.Eventually(t, func() bool {
		op := Op{Kind: Acquire, Token: "other", TTL: time.Hour}
		call(t.Context(), 10*time.Second, near, key, &op, began)
		history = append(history, op)
		return op.Outcome == Yes
	}, 10*time.Second, 10*time.Millisecond)
	proxy.Heal(t)
	do(Extend, "waiter", No)
	assert.Equal(t, porcupine.Ok, Check(history, Leniency{Leaves: true}, time.Minute))
}

// Leniency about a Wait that leaves late is none about two holders, and a report shows them.
func TestReport(t *testing.T) {
	at := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	history := []Op{
		{Kind: Acquire, Token: "a", TTL: time.Hour, Call: at(1), Return: at(2), Outcome: Yes},
		{Kind: Wait, Token: "w", TTL: time.Hour, Call: at(2), Return: at(4), Outcome: No},
		{Kind: Release, Token: "b", Call: at(5), Return: at(6), Outcome: No},
		{Kind: Acquire, Token: "b", TTL: time.Hour, Call: at(7), Return: at(8), Outcome: Yes},
		{Kind: Fence, Token: "b", Call: at(9), Return: at(10), Outcome: Yes, Fence: 1},
	}
	but := Leniency{Leaves: true}
	require.Equal(t, porcupine.Illegal, Check(history, but, time.Minute))
	assert.Equal(t, []Op{history[0], history[1], history[3]}, reduce(history, but, time.Minute)[:3])
	report := Report(history, but, time.Minute)
	for _, op := range history {
		assert.Contains(t, report, fmt.Sprint(op))
	}
	assert.Contains(t, report, "the most that can be explained:\n\nAcquire(")
}
