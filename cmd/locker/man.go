package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const manHelp = `Man writes the manual pages, locker.1 and one for each command, into a directory, which it creates if
it is missing. They are made from the same text as --help.`

const manExample = `  locker man /usr/local/share/man/man1`

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages",
		Long:    manHelp,
		Example: manExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("missing directory, for example:%s", strings.TrimPrefix(manExample, " "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return withStatus(statusFailed, "cannot write the manual pages: %w", err)
			}
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			asMarkdown(root)
			header := &doc.GenManHeader{Title: "LOCKER", Section: "1", Source: "locker " + version(), Manual: "Locker"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return withStatus(statusFailed, "cannot write the manual pages: %w", err)
			}
			return nil
		},
	}
}

// asMarkdown turns indented lines of the help, which are lists and URLs, into blocks that the manual
// pages show as they are.
func asMarkdown(cmd *cobra.Command) {
	var b strings.Builder
	inBlock := false
	for line := range strings.Lines(cmd.Long) {
		isIndented := strings.HasPrefix(line, "  ")
		if isIndented != inBlock && line != "\n" {
			b.WriteString("\n")
			inBlock = isIndented
		}
		if isIndented {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	cmd.Long = b.String()
	for _, child := range cmd.Commands() {
		asMarkdown(child)
	}
}
