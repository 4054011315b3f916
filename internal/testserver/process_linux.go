package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// runAs makes cmd run as a user if we are root.
func runAs(cmd *exec.Cmd, name string) error {
	if name == "" || os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := idsOf(name)
	if err != nil {
		return err
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return nil
}

func giveTo(path, name string) error {
	uid, gid, err := idsOf(name)
	if err != nil {
		return err
	}
	return os.Chown(path, uid, gid)
}

func idsOf(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}

// pause returns when all threads have stopped: one that runs on another processor takes a moment
// to see the signal, and may answer a request until then.
func (p *process) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Microsecond) {
		stopped, err := p.isStopped()
		if stopped || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not stopped after %v", patience)
		}
	}
}

func (p *process) isStopped() (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return false, err
		}
		// "<id> (<name>) <state> …", and the name may have anything in it
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if len(state) == 0 || state[0] != 'T' {
			return false, nil
		}
	}
	return true, nil
}

// mapInt64 returns the number at the beginning of a file as memory that is shared with other processes.
func mapInt64(tb testing.TB, path string) (*int64, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() { _ = syscall.Munmap(b) })
	return (*int64)(unsafe.Pointer(&b[0])), nil
}

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
