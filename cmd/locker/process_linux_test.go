package main

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// As the first process of a container, locker waits for processes whose parents have ended.
func TestFirstProcess(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	p := prepare(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "sh", "-c",
		`orphan=$(sleep 0.1 >/dev/null & echo $!); while kill -0 $orphan; do sleep 0.01; done 2>/dev/null; echo gone; exit 4`)
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		p.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	err := p.Start()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("this user cannot make a namespace of processes: ", err)
	}
	require.NoError(t, err)
	require.Equal(t, 4, p.status(t), &p.stderr)
	require.Equal(t, "gone\n", p.stdout.String())
}
