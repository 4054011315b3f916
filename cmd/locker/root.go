package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const rootHelp = `Locker holds named locks that many machines share, on a server that you already run.

Its main use is to run a command under a lock: if every machine starts the command, only one runs it
at a time. It also shows who holds which lock, and can break a lock whose holder is gone.

The backend is a URL, from --backend or the variable LOCKER_BACKEND:

`

const secretHelp = `
Passwords. A command line is visible to all users of the machine, so put the password, or the whole
URL, in the environment (LOCKER_PASSWORD, LOCKER_BACKEND) or in a file (--password-file, or
LOCKER_PASSWORD_FILE). The URL's password comes first, then the file's. Locker prints none of them.
The command inherits the environment, but not the content of the file.

Long flags may begin with one dash as well as with two.`

const rootExample = `  export LOCKER_BACKEND=redis://localhost:6379

  # On all replicas, at the same time: one of them writes the report, the others skip it.
  locker run --key nightly-report --skip --min-hold 1h -- ./report --date yesterday

  # Wait for up to a minute until no other deployment is under way.
  locker run --key deploy/web --wait 1m -- ./deploy.sh

  # Who holds which locks?
  locker ls
  locker show deploy/web`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "locker",
		Short:             "Run a command under a lock that many machines share",
		Long:              rootHelp + backend.Help() + secretHelp,
		Example:           rootExample,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return fmt.Errorf("unknown command %q; locker --help lists the commands", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("missing subcommand, for example: locker run --key nightly -- command (see locker --help)")
		},
	}
	flags := root.PersistentFlags()
	flags.StringP("backend", "b", "", "the URL of the server that keeps the locks (default $LOCKER_BACKEND)")
	flags.String("password-file", "", "a file with the server's password (default $LOCKER_PASSWORD_FILE)")
	_ = root.MarkPersistentFlagFilename("password-file")
	_ = root.RegisterFlagCompletionFunc("backend", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return backend.Schemes(), cobra.ShellCompDirectiveNoSpace
	})
	root.AddCommand(newRun(), newLs(), newShow(), newBreak(), newWatch(), newBench(), newMan())
	return root
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// open returns the backend that the flags and the environment describe, for as many requests at a
// time.
func open(cmd *cobra.Command, connections int) (*backend.Backend, error) {
	c := backend.Config{
		URL:              setting(cmd, "backend", "LOCKER_BACKEND"),
		Password:         os.Getenv("LOCKER_PASSWORD"),
		SentinelPassword: os.Getenv("LOCKER_SENTINEL_PASSWORD"),
		Connections:      connections,
	}
	if c.URL == "" {
		return nil, errors.New("missing backend: give its URL with --backend or LOCKER_BACKEND, " +
			"for example redis://localhost:6379")
	}
	if file := setting(cmd, "password-file", "LOCKER_PASSWORD_FILE"); file != "" {
		var err error
		if c.Password, err = readPassword(file); err != nil {
			return nil, err
		}
	}
	b, err := backend.Open(c)
	if e := (*backend.UnavailableError)(nil); errors.As(err, &e) {
		return nil, withStatus(statusUnavailable, "%w; %s", err, advice(err))
	}
	return b, err
}

// setting returns the value of a flag, or of a variable if the flag is not given.
func setting(cmd *cobra.Command, flag, variable string) string {
	if value, _ := cmd.Flags().GetString(flag); value != "" {
		return value
	}
	return os.Getenv(variable)
}

func readPassword(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the password file: %w", err)
	}
	password := strings.TrimRight(string(content), "\r\n")
	switch {
	case password == "":
		return "", fmt.Errorf("the password file %s is empty", file)
	case strings.ContainsAny(password, "\r\n"):
		return "", fmt.Errorf("the password file %s has more than one line", file)
	}
	return password, nil
}

// twoDashes adds the second dash to long flags that have only one, which pflag would read as several
// short ones. It leaves alone values, whatever follows "--", and the command that run runs.
func twoDashes(root *cobra.Command, args []string) []string {
	args = slices.Clone(args)
	cmd := root
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			if cmd.Name() == "run" {
				break // the command to run
			}
			if cmd == root {
				cmd, _, _ = root.Find([]string{arg})
			}
			if cmd == root {
				break // an unknown command, or one of cobra's for completion
			}
			continue
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag := lookup(cmd, name)
		if flag == nil {
			continue
		}
		if !strings.HasPrefix(arg, "--") && len(name) > 1 {
			args[i] = "-" + arg
		}
		if !hasValue && flag.NoOptDefVal == "" {
			i++
		}
	}
	return args
}

func lookup(cmd *cobra.Command, name string) *pflag.Flag {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if len(name) == 1 {
		if flag := cmd.Flags().ShorthandLookup(name); flag != nil {
			return flag
		}
		return cmd.Root().PersistentFlags().ShorthandLookup(name)
	}
	return cmd.Flag(name)
}
