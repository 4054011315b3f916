//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Processes of one machine share the locks of a file.
func TestSQLite(t *testing.T) {
	t.Parallel()
	url := "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
	p := locked(t, statusUnavailable, nil, "show", "-b", url, "k")
	requireOneLine(t, p)
	require.Contains(t, p.stderr.String(), "unable to open database file")

	holder := start(t, nil, "run", "-b", url+"?create=true", "--key", "k", "sh", "-c", "echo started; exec sleep 1000")
	holder.prints(t, "started")
	held := states(t, locked(t, 0, nil, "ls", "-b", url, "--json").stdout.String())
	require.Len(t, held, 1)
	require.Contains(t, held[0].Owner, hostAndPID(t, holder)+"/")
	require.Empty(t, locked(t, statusHeld, nil, "run", "-b", url, "--key", "k", "--skip", "echo", "ran").stdout.String())
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, holder.status(t))
	require.Equal(t, "ran\n", locked(t, 0, nil, "run", "-b", url, "--key", "k", "--skip", "echo", "ran").stdout.String())
}
