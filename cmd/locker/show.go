package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const showHelp = `Show reports whether a lock is held, by whom, for how long, and how many wait for it. It changes
nothing. The permits of run --permits are locks of their own: see locker ls --help.`

const showExample = `  locker show -b redis://localhost nightly
  locker show --json nightly | jq .held`

func newShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show KEY",
		Short:   "Show who holds a lock, for how long, and how many wait",
		Long:    showHelp,
		Example: showExample,
		Args:    oneKey,
	}
	asJSON := jsonFlag(cmd, "the lock")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, inspector, err := openInspector(cmd)
		if err != nil {
			return err
		}
		defer b.Close()
		info, err := inspector.Inspect(cmd.Context(), args[0])
		if err != nil {
			return backendError(b, err)
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), stateOf(info))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), describe(info))
		return err
	}
	return cmd
}

const breakHelp = `Break takes a lock away from its holder, and the next that waits gets it. A permit of run --permits
is broken by its own name, such as KEY/2. On Redis the next command may get it up to a second later.

The holder, if it lives, learns of it when it extends the lock next. Until then two of them work at
the same time. So break a lock only if its holder is known to be gone or hung, and cannot wait for
the end of its ttl.

Break shows the holder and asks first, unless --yes is given. It breaks the lock of that holder, and
not that of another which has taken it meanwhile. The exit status is 1 if the lock was not broken.`

const breakExample = `  locker break -b redis://localhost nightly
  locker break --yes nightly`

func newBreak() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "break KEY",
		Short:   "Take a lock away from its holder",
		Long:    breakHelp,
		Example: breakExample,
		Args:    oneKey,
	}
	yes := cmd.Flags().BoolP("yes", "y", false, "do not ask")
	asJSON := jsonFlag(cmd, "the broken lock")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key := args[0]
		if !*yes && !term.IsTerminal(int(os.Stdin.Fd())) {
			return errors.New("stdin is not a terminal, so break cannot ask; use --yes")
		}
		b, inspector, err := openInspector(cmd)
		if err != nil {
			return err
		}
		defer b.Close()
		info, err := inspector.Inspect(cmd.Context(), key)
		switch {
		case err != nil:
			return backendError(b, err)
		case info.Token == "":
			return withStatus(statusFailed, "the lock %q is free", key)
		case !*yes && !confirmed(fmt.Sprintf("The lock %q is %s. Break it? [y/N] ", key, describe(info))):
			return withStatus(statusFailed, "the lock %q is left alone", key)
		}
		released, err := inspector.Release(cmd.Context(), key, info.Token)
		switch {
		case err != nil:
			return backendError(b, err)
		case !released:
			return withStatus(statusFailed, "the lock %q is no longer held by %s", key, ownerOf(info.Token))
		case *asJSON:
			return printJSON(cmd.OutOrStdout(), stateOf(info))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "broken; it was %s\n", describe(info))
		return err
	}
	return cmd
}

// confirmed asks on the terminal.
func confirmed(question string) bool {
	fmt.Fprint(os.Stderr, question)
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}
