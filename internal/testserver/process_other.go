//go:build !linux

package testserver

import (
	"errors"
	"os/exec"
)

// dieWithUs does nothing: a test binary that is killed leaves its servers behind here.
func dieWithUs(*exec.Cmd) {}

func (p *process) pause() error  { return errors.ErrUnsupported }
func (p *process) resume() error { return errors.ErrUnsupported }
