package testserver

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMariaDB(t *testing.T) {
	s := MariaDB(t)
	for range 2 {
		dir, err := mariadbKind.dir(s.Addr)
		require.NoError(t, err)
		require.Equal(t, s.dir, dir)
		conn, err := net.Dial("unix", s.MariaDBSocket())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		s.Restart()
	}
	s.Stop()
	require.True(t, down(s.Addr))
}
