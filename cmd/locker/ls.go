package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/golockers/locker"
	"github.com/spf13/cobra"
)

const lsHelp = `Ls lists the locks that are held, or those whose names begin with PREFIX: their holders, the time
that is left to them unless they extend it, and how many wait. A dash means that the backend does
not know. The holder is the host and process id of a locker command, or the label that a Go program
has chosen with Owned or WithOwner; otherwise it is the beginning of its token.

The permits of run --permits are the locks KEY/1, KEY/2 and so on. The commands that wait for a
permit are the holder of the lock KEY/queue and its waiters. A single Redis server, or Sentinel, has
no such lock for up to 64 permits. There, each permit shows all commands that wait for one.

On Redis it goes through all keys of the server. memcached cannot list locks.`

const lsExample = `  locker ls -b redis://localhost
  locker ls deploy/
  locker ls --json | jq -r 'select(.ttl_seconds < 10).key'`

func newLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held",
		Long:    lsHelp,
		Example: lsExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return errors.New("one prefix at a time: locker ls PREFIX")
			}
			return nil
		},
	}
	asJSON := jsonFlag(cmd, "each lock")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := open(cmd, 2)
		if err != nil {
			return err
		}
		defer b.Close()
		lister, ok := b.Locker.(locker.Lister)
		if !ok {
			return fmt.Errorf("%s cannot list its locks; locker show KEY shows one", b.Name)
		}
		infos, err := list(cmd.Context(), lister, append(args, "")[0])
		if err != nil {
			return backendError(b, err)
		}
		if *asJSON {
			for _, info := range infos {
				if err := printJSON(cmd.OutOrStdout(), stateOf(info)); err != nil {
					return withStatus(statusFailed, "%w", err)
				}
			}
			return nil
		}
		if len(infos) == 0 { // which a wrong table or prefix would look like
			say("no locks on %s with keys that begin with %q", b.Name, append(args, "")[0])
		}
		return printTable(cmd.OutOrStdout(), infos)
	}
	return cmd
}

// list returns the locks sorted by key. It prints the errors that concern one key.
func list(ctx context.Context, l locker.Lister, prefix string) ([]locker.Info, error) {
	var infos []locker.Info
	for info, err := range l.List(ctx, prefix) {
		switch {
		case err == nil:
			infos = append(infos, info)
		case info.Key == "":
			return nil, err
		default:
			fmt.Fprintf(os.Stderr, "locker: %s: %s\n", printable(info.Key), oneLine(err))
		}
	}
	slices.SortFunc(infos, func(a, b locker.Info) int { return cmp.Compare(a.Key, b.Key) })
	return infos, nil
}

func printTable(w io.Writer, infos []locker.Info) error {
	if len(infos) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tHOLDER\tLEFT\tWAITING")
	for _, info := range infos {
		left, waiting := "-", "-"
		if info.TTL >= 0 {
			left = round(info.TTL).String()
		}
		if info.Waiters >= 0 {
			waiting = fmt.Sprint(info.Waiters)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", printable(info.Key), ownerOf(info.Token), left, waiting)
	}
	if err := table.Flush(); err != nil {
		return withStatus(statusFailed, "%w", err)
	}
	return nil
}
