//go:build !linux

package testserver

import (
	"errors"
	"os/exec"
	"testing"
)

// dieWithUs does nothing: on this system a test binary that is killed leaves its servers behind.
func dieWithUs(*exec.Cmd) {}

// runAs and giveTo do nothing: on this system, do not run the tests as root.
func runAs(*exec.Cmd, string) error { return nil }
func giveTo(string, string) error   { return nil }

func mapInt64(testing.TB, string) (*int64, error) { return nil, errors.ErrUnsupported }

func (p *process) pause() error  { return errors.ErrUnsupported }
func (p *process) resume() error { return errors.ErrUnsupported }
