//go:build unix

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// nested returns the arguments of a run inside a run. The inner one is the program because of the
// variable.
func nested(outer []string, inner ...string) []string {
	args := append(append([]string{"run"}, outer...), "env", mainVariable+"=1", os.Args[0], "run")
	return append(args, inner...)
}

// A run inside a run for the same lock would wait for itself, so it is an error at once, even if
// the server has another name there and other locks are taken in between.
func TestNested(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		outer := []string{"-b", url, "--key", "k"}
		again := strings.Replace(url, "127.0.0.1", "localhost", 1)
		require.NotEqual(t, url, again)
		between := nested([]string{"-b", url, "--key", "other"}, "-b", url, "-k", "k", "echo", "ran")
		for _, args := range [][]string{
			nested(outer, "-b", again, "--key", "k", "echo", "ran"),
			nested(outer, "-b", url, "--key", "k", "--wait", "1h", "echo", "ran"),
			nested(outer, "-b", url, "--key", "k", "--skip", "echo", "ran"),
			nested(outer, between[1:]...),
		} {
			p := locked(t, statusUsage, nil, args...)
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), `"k" is held by the run that this one is part of`)
			require.Empty(t, p.stdout.String())
		}
		p := locked(t, 0, nil, nested(outer, "-b", url, "--key", "l", "echo", "ran")...)
		require.Equal(t, "ran\n", p.stdout.String(), "another lock")
	})
}

// What counts is who holds the lock, not what its name is.
func TestNestedElsewhere(t *testing.T) {
	t.Parallel()
	srv, other := testserver.Redis(t), testserver.Redis(t)
	url := "redis://" + srv.Addr
	for _, inner := range []string{"redis://" + other.Addr, url + "?prefix=mine"} {
		p := locked(t, 0, nil, nested([]string{"-b", url, "-k", "k"}, "-b", inner, "-k", "k", "echo", "ran")...)
		require.Equal(t, "ran\n", p.stdout.String())
	}
	// A process that its command has left behind does not run under the lock any more.
	p := locked(t, 0, nil, "run", "-b", url, "-k", "k", "sh", "-c", `"$@" & echo left`, "sh", "sh", "-c",
		`until [ "$1" = free ]; do set -- "$(env `+mainVariable+`=1 "$0" show -b `+url+` k)" ; done
		`+mainVariable+`=1 exec "$0" run -b `+url+` -k k echo ran`, os.Args[0])
	require.Equal(t, "left\nran\n", p.stdout.String())
}

func TestNestedPermits(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	permit := func(n string) []string { return []string{"-b", "redis://" + srv.Addr, "-k", "k", "--permits", n} }
	p := locked(t, 0, nil, nested(permit("2"), append(permit("2"), "sh", "-c", "echo $LOCKER_PERMIT")...)...)
	require.Equal(t, "2\n", p.stdout.String(), "there is another permit")
	for _, args := range [][]string{
		nested(permit("1"), append(permit("1"), "true")...),
		nested(permit("2"), nested(permit("2"), append(permit("2"), "true")...)[1:]...),
		nested(permit("2"), "-b", "redis://"+srv.Addr, "-k", "k/1", "true"), // a permit is a lock
	} {
		p := locked(t, statusUsage, nil, args...)
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), "would wait for itself")
	}
}
