//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each mistake is one line that says what to do, and status 64; the command does not run.
func TestBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, lines := filepath.Join(dir, "empty"), filepath.Join(dir, "lines")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	require.NoError(t, os.WriteFile(lines, []byte("a\nb\n"), 0o600))
	const url = "redis://127.0.0.1:1"
	run := func(args ...string) []string { return append([]string{"run", "-b", url, "--key", "k"}, args...) }
	for _, test := range []struct {
		args []string
		part string
	}{
		{nil, "locker --help"},
		{[]string{"nonsense"}, `unknown command "nonsense"; locker --help lists the commands`},
		{[]string{"shwo", "nightly"}, `unknown command "shwo"; did you mean show?`},
		{[]string{"run", "--key", "k", "true"}, "missing backend: give its URL with --backend or LOCKER_BACKEND"},
		{[]string{"run", "-b", url, "true"}, "missing lock: give its name with --key"},
		{run(), "missing command"},
		{run("--"), "missing command"},
		{run("--", ""), "missing command"},
		{run("--nonsense", "true"), "unknown flag: --nonsense"},
		{run("--ttl", "30", "true"), `invalid argument "30" for "--ttl"`},
		{run("--ttl", "soon", "true"), `invalid argument "soon" for "--ttl"`},
		{run("--ttl", "10ms", "true"), "--ttl 10ms is less than a second"},
		{run("--ttl", "-1s", "true"), "--ttl -1s is less than a second"},
		{run("--wait", "0s", "true"), "--wait is not positive; use --skip"},
		{run("--wait", "-1s", "true"), "--wait is not positive; use --skip"},
		{run("--wait", "1s", "--skip", "true"), "--wait and --skip exclude each other"},
		{run("--min-hold", "-1s", "true"), "--min-hold -1s is negative"},
		{run("--grace", "20s", "true"), "--grace 20s is not between 0 and half of --ttl, which is 30s"},
		{run("--grace", "-1s", "true"), "--grace -1s is not between"},
		{run("--password-file", filepath.Join(dir, "none"), "true"), "cannot read the password file"},
		{run("--password-file", empty, "true"), "is empty"},
		{run("--password-file", lines, "true"), "has more than one line"},
		{run("-b", "localhost:6379", "true"), "the backend must be a URL that begins with one of redis://"},
		{run("-b", "http://localhost", "true"), `unknown backend "http://": use one of redis://`},
		{run("-b", "memory://", "true"), `unknown backend "memory://"`},
		{[]string{"show", "-b", url}, "missing key, for example: locker show nightly"},
		{[]string{"show", "-b", url, "a", "b"}, "missing key"},
		{[]string{"show", "-b", url, ""}, "the key is empty"},
		{[]string{"show", "-b", url, strings.Repeat("k", 1025)}, "the key has 1025 bytes"},
		{[]string{"show", "k"}, "missing backend"},
		{[]string{"break", "-b", url}, "missing key, for example: locker break nightly"},
		{[]string{"watch", "-b", url, "--interval", "0s", "k"}, "--interval 0s is less than a millisecond"},
		{[]string{"ls", "-b", url, "a", "b"}, "one prefix at a time"},
		{[]string{"bench", "-b", url, "--goroutines", "1"}, "--goroutines 1 is not between 2 and 10000"},
		{[]string{"bench", "-b", url, "--keys", "0"}, "--keys 0 is less than 1"},
		{[]string{"bench", "-b", url, "--keys", "5"}, "--goroutines must be at least 10, twice --keys"},
		{[]string{"bench", "-b", url, "-d", "1ms"}, "--duration 1ms is less than 100ms"},
		{[]string{"bench", "-b", url, "-o", "report.pdf"}, "--output must end with .html or .svg"},
		{[]string{"bench", "-b", url, "more"}, `unknown command "more"`},
		{run("-b", url, "--permits", "0", "true"), "--permits 0 is less than 1"},
		{[]string{"man"}, "missing directory"},
		{run("-b", "memcache://localhost", "--ttl", "1000h", "true"), "invalid ttl"},
	} {
		p := locked(t, statusUsage, nil, test.args...)
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), test.part)
		require.Empty(t, p.stdout.String())
	}
	locked(t, statusUsage, []string{"LOCKER_BACKEND=nonsense"}, "run", "--key", "k", "true")
}

func TestTwoDashes(t *testing.T) {
	for _, test := range []struct{ args, want []string }{
		{[]string{"run", "-key", "k", "-ttl=5s", "-skip", "-b", "-ttl", "--", "c", "-key"},
			[]string{"run", "--key", "k", "--ttl=5s", "--skip", "-b", "-ttl", "--", "c", "-key"}},
		{[]string{"run", "-skip", "-key", "-wait", "c", "-key", "-skip"},
			[]string{"run", "--skip", "--key", "-wait", "c", "-key", "-skip"}},
		{[]string{"-backend", "u", "run", "-k", "-skip", "-grace", "1s", "c", "-skip"},
			[]string{"--backend", "u", "run", "-k", "-skip", "--grace", "1s", "c", "-skip"}},
		{[]string{"run", "-key", "k", "run", "-skip", "-key"},
			[]string{"run", "--key", "k", "run", "-skip", "-key"}},
		{[]string{"run", "-key", "run", "run", "run", "-skip"},
			[]string{"run", "--key", "run", "run", "run", "-skip"}},
		{[]string{"run", "-help"}, []string{"run", "--help"}},
		{[]string{"-version"}, []string{"--version"}},
		{[]string{"run", "-unknown", "-"}, []string{"run", "-unknown", "-"}},
		{[]string{"__complete", "run", "-key"}, []string{"__complete", "run", "-key"}},
	} {
		require.Equal(t, test.want, twoDashes(newRoot(), test.args))
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"-help"}, {"help"}, {"run", "--help"}, {"help", "run"},
		{"ls", "--help"}, {"show", "--help"}, {"break", "--help"}, {"watch", "--help"}, {"bench", "--help"}, {"man", "--help"}} {
		p := locked(t, 0, nil, args...)
		require.Contains(t, p.stdout.String(), "Examples:")
		require.Empty(t, p.stderr.String())
		for line := range strings.Lines(p.stdout.String()) {
			require.LessOrEqual(t, len([]rune(line)), 120, line)
		}
	}
	require.Contains(t, locked(t, 0, nil, "--version").stdout.String(), "locker version ")
}

func TestMan(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "share", "man1") // a fresh machine has none
	locked(t, 0, nil, "man", dir)
	for _, cmd := range newRoot().Commands() {
		page, err := os.ReadFile(filepath.Join(dir, "locker-"+cmd.Name()+".1"))
		require.NoError(t, err)
		for _, part := range []string{".SH SYNOPSIS", ".SH EXAMPLE", "--backend"} {
			require.Contains(t, string(page), part, cmd.Name())
		}
	}
	root, err := os.ReadFile(filepath.Join(dir, "locker.1"))
	require.NoError(t, err)
	require.Contains(t, string(root), "redis+sentinel://[user:password@]host:26379,host:26379/master[/database]\n")
	requireOneLine(t, locked(t, statusFailed, nil, "man", filepath.Join(dir, "locker.1")))
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, locked(t, 0, nil, "completion", shell).stdout.String(), "locker")
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"ru"}, "run\t"},
		{[]string{"run", "--mi"}, "--min-hold"},
		{[]string{"run", "-b", "redi"}, "redis+sentinel://"},
		{[]string{"bench", "--output", ""}, ":8"}, // files with the right endings
	} {
		require.Contains(t, locked(t, 0, nil, append([]string{"__complete"}, test.args...)...).stdout.String(), test.want)
	}
}
