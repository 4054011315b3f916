package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/golockers/locker/semaphore"
	"github.com/spf13/cobra"
)

const runHelp = `Run holds the lock while the command runs, and keeps it alive for as long as that takes. If the
lock is held elsewhere, run waits for it: without a limit, for as long as --wait, or with --skip not
at all.

The command is in a process group of its own. Signals that locker gets go to the whole group, and so
does Ctrl-C. Its environment has LOCKER_KEY, and LOCKER_FENCE with the fencing number of the lock, if
the backend has fencing numbers: a resource that refuses smaller numbers than it has seen is safe
from a command whose lock was lost.

If the backend fails while run waits, run goes on waiting for up to ten seconds, so that the server
may restart.

If the backend cannot be reached, the lock ends --ttl after it was last extended. The command is then
stopped in time: SIGTERM to its group when --grace is left, and SIGKILL at the end. If the lock is
found to be held elsewhere, SIGTERM follows at once, and SIGKILL after --grace. If locker itself is
killed, then on Linux the command is killed as well, but not the processes that it started.

--permits lets that many commands with the same key run at a time, each with a permit instead of the
lock. Every command with that key must use --permits; if the numbers differ, the largest is the limit.
The permits are the locks KEY/1, KEY/2 and so on, and LOCKER_PERMIT is the number of the command's
permit. LOCKER_FENCE then orders the holders of that permit. Waiting commands are served in the order
in which they came, except on memcached and redigo. A command with --skip may overtake them.

--min-hold keeps the lock for that long even if the command ends before, whatever its outcome. With
--skip it makes a job run once in a period on machines that all start it at about the same time.

A run inside a run for the same lock would wait for itself, so it is an error at once. LOCKER_HELD in
the environment tells them apart; it has marks of the locks under which the command runs.

Exit status:
` + statusHelp

const runExample = `  # Each night on all replicas: one writes the report. Their clocks differ by less than an hour.
  locker run -b redis://localhost --key nightly --skip --min-hold 1h -- ./report

  # One deployment at a time. The script passes $LOCKER_FENCE on to what it changes.
  locker run -b redis://localhost --key deploy/web --wait 10m -- ./deploy.sh

  # Three imports at a time, on all machines together.
  locker run -b redis://localhost --key imports --permits 3 -- ./import.sh customers

  # In a crontab: a skipped run is not an error.
  0 3 * * * locker run --key backup --skip -- backup || [ $? -eq 75 ]

  # The password is in a file, and Sentinels know the server.
  locker run -b redis+sentinel://s1,s2,s3/mymaster --password-file /run/secrets/redis \
      --key migrate -- ./migrate up`

// runFlags are the flags of run.
type runFlags struct {
	key     string
	ttl     time.Duration
	wait    time.Duration // 0: no limit
	skip    bool
	minHold time.Duration
	grace   time.Duration
	permits int // 0 means a lock
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:     "run --key KEY [flags] -- COMMAND [ARGUMENT…]",
		Short:   "Run a command while holding a lock",
		Long:    runHelp,
		Example: runExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("missing command, for example: locker run --key nightly -- ./report")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("grace") {
				f.grace = min(f.ttl/3, 10*time.Second)
			}
			if err := f.check(cmd.Flags().Changed("wait")); err != nil {
				return err
			}
			if cmd.Flags().Changed("permits") && f.permits < 1 {
				return fmt.Errorf("--permits %d is less than 1", f.permits)
			}
			b, err := open(cmd, 1)
			if err != nil {
				return err
			}
			defer b.Close()
			if err := checkNested(b, f); err != nil {
				return err
			}
			if f.permits > 0 {
				b.Locker = semaphore.NewLocker(b.Locker, f.permits)
			}
			return run(b, f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command are the command's
	flags.SortFlags = false
	flags.StringVarP(&f.key, "key", "k", "", "the name of the lock")
	flags.DurationVar(&f.ttl, "ttl", 30*time.Second, "how long the lock outlives a holder that died")
	flags.DurationVar(&f.wait, "wait", 0, "give up after that time if the lock is held (default no limit)")
	flags.BoolVar(&f.skip, "skip", false, "give up at once if the lock is held")
	flags.IntVar(&f.permits, "permits", 0, "let that many commands with the key run at a time")
	flags.DurationVar(&f.minHold, "min-hold", 0, "keep the lock for at least that long")
	flags.DurationVar(&f.grace, "grace", 0, "time from SIGTERM to SIGKILL if the lock is lost (default ttl/3, up to 10s)")
	return cmd
}

func (f *runFlags) check(hasWait bool) error {
	switch {
	case f.key == "":
		return errors.New("missing lock: give its name with --key")
	case f.ttl < time.Second:
		return fmt.Errorf("--ttl %v is less than a second", f.ttl)
	case hasWait && f.skip:
		return errors.New("--wait and --skip exclude each other")
	case hasWait && f.wait <= 0:
		return errors.New("--wait is not positive; use --skip to give up at once")
	case f.minHold < 0:
		return fmt.Errorf("--min-hold %v is negative", f.minHold)
	case f.grace < 0 || f.grace > f.ttl/2:
		return fmt.Errorf("--grace %v is not between 0 and half of --ttl, which is %v", f.grace, f.ttl)
	}
	return nil
}

// run takes the lock, runs the command, and returns an error with the exit status.
func run(b *backend.Backend, f runFlags, command []string) error {
	signals := notify()
	path, err := find(command[0])
	if err != nil {
		return err
	}
	h := &holding{backend: b, flags: f, observer: &extensions{}}
	if err := h.acquire(signals); err != nil {
		return err
	}
	env, err := h.environment()
	if err != nil {
		return err
	}
	notifyStop(signals)
	p, err := startProcess(path, command, env)
	if err != nil {
		h.abandon()
		return cannotStart(command[0], err)
	}
	s := &supervisor{holding: h, process: p, signals: signals}
	return s.supervise()
}

// find returns the path of the command, as a shell does, before there is a lock to be released.
func find(command string) (string, error) {
	path, err := exec.LookPath(command)
	if errors.Is(err, exec.ErrDot) {
		err = nil // as in a shell, the user's PATH decides
	}
	if err != nil {
		return "", cannotStart(command, err)
	}
	return path, nil
}

func cannotStart(command string, err error) error {
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return withStatus(statusNotFound, "%s: command not found in $PATH", command)
	case errors.Is(err, os.ErrNotExist):
		return withStatus(statusNotFound, "%s: %w", command, err)
	}
	return withStatus(statusNotExecutable, "cannot execute %s: %w", command, err)
}
