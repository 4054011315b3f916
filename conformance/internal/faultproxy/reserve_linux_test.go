package faultproxy

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// While a proxy refuses connections, no other socket gets its port: neither one that asks for it,
// nor one for which the kernel chooses, whether it listens or connects.
func TestProxyKeepsItsPort(t *testing.T) {
	s, p := proxied(t)
	p.Refuse()
	_, text, err := net.SplitHostPort(p.Addr)
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)

	unshared := net.ListenConfig{Control: option(syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)}
	for _, host := range []string{"127.0.0.1:", "0.0.0.0:"} {
		_, err = unshared.Listen(t.Context(), "tcp4", host+text)
		assert.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	const ipLocalPortRange = 51 // since Linux 6.3: the ports from which the kernel chooses
	only := option(syscall.IPPROTO_IP, ipLocalPortRange, port<<16|port)
	for _, host := range []string{"127.0.0.1:", "0.0.0.0:"} {
		config := net.ListenConfig{Control: only}
		_, err = config.Listen(t.Context(), "tcp4", host+"0")
		assert.True(t, errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.ENOPROTOOPT), "%v", err)
	}
	dialer := net.Dialer{Control: only}
	_, err = dialer.Dial("tcp4", s.addr)
	assert.True(t, errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENOPROTOOPT), "%v", err)

	_, err = net.Dial("tcp", p.Addr)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Heal(t)
	dial(t, p).ask("again")
}

// option returns a function that sets an option of a socket before it is used.
func option(level, name, value int) func(network, addr string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), level, name, value) })
		return errors.Join(err, set)
	}
}
