package stampede

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// otherProgram is the directory, below the working directory, of the module that has all backends.
const otherProgram = "backends"

// runOther builds the program that has all backends and runs it in the place of this one. It returns
// its exit status. An error means that it did not run.
func runOther(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	if _, err := os.Stat(filepath.Join(otherProgram, "go.mod")); err != nil {
		return 0, fmt.Errorf("the clients of this backend are compiled when they are needed, "+
			"so the program has to run in the directory of its source: %w", err)
	}
	fmt.Fprintln(stderr, "stampede: compiling the clients of other backends")
	dir, err := os.MkdirTemp("", "stampede-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "stampede.exe")
	build := exec.CommandContext(ctx, "go", "build", "-C", otherProgram, "-buildvcs=false", "-o", program, ".")
	build.Stderr = stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("go build: %w", err)
	}
	other := exec.CommandContext(ctx, program, args...)
	other.Stdout, other.Stderr = stdout, stderr
	other.Cancel = func() error { return other.Process.Signal(syscall.SIGTERM) } // and it reports that
	if err := other.Run(); other.ProcessState == nil {
		return 0, err // it did not start
	}
	return other.ProcessState.ExitCode(), nil
}
