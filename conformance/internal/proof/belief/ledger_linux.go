package belief

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Ledger is memory that processes share and that outlasts them. It contains beliefs, including
// those of processes that were killed, and words for other counts.
type Ledger struct {
	mem   []byte
	words int
}

const (
	wordSize = 8
	slotSize = 3 * wordSize // key and holder, from, until
)

// Create makes a ledger in a new file, with room for that many words and beliefs. The file takes no
// more disk space than what was written to it.
func Create(path string, words, beliefs int) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(int64(wordSize + words*wordSize + beliefs*slotSize)); err != nil {
		return err
	}
	return nil
}

// Open maps the file of a ledger that was created with that many words.
func Open(path string, words int) (*Ledger, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &Ledger{mem, words}, nil
}

// Close unmaps the ledger, which must not be used afterwards.
func (l *Ledger) Close() error { return syscall.Munmap(l.mem) }

func (l *Ledger) at(offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&l.mem[offset]))
}

// Word returns a word that all processes share.
func (l *Ledger) Word(n int) *atomic.Uint64 { return l.at((1 + n) * wordSize) }

// Belief is an interval in a ledger. Its end may be moved.
type Belief struct{ slot, until *atomic.Uint64 }

// Add records a belief. It panics if the ledger is full.
func (l *Ledger) Add(i Interval) Belief {
	n := int(l.at(0).Add(1) - 1)
	offset := (1+l.words)*wordSize + n*slotSize
	if offset+slotSize > len(l.mem) {
		panic(fmt.Sprintf("belief: the ledger is full after %d beliefs", n))
	}
	l.at(offset + wordSize).Store(uint64(i.From))
	until := l.at(offset + 2*wordSize)
	until.Store(uint64(i.Until))
	// This is last, so that the slot stays empty if the process is killed before it has written
	// all.
	l.at(offset).Store(uint64(i.Key+1)<<32 | uint64(i.Holder))
	return Belief{slot: l.at(offset), until: until}
}

// Until moves the end of a belief. A holder moves it forward in time after the lock was extended,
// and back before it gives up the lock.
func (b Belief) Until(t time.Duration) { b.until.Store(uint64(t)) }

// Beliefs returns the recorded beliefs.
func (l *Ledger) Beliefs() (all []Interval) {
	for offset := (1 + l.words) * wordSize; offset+slotSize <= len(l.mem); offset += slotSize {
		n := (offset - (1+l.words)*wordSize) / slotSize
		if n >= int(l.at(0).Load()) {
			break
		}
		if slot := l.at(offset).Load(); slot != 0 {
			all = append(all, Interval{
				Key: uint32(slot>>32) - 1, Holder: uint32(slot),
				From:  time.Duration(l.at(offset + wordSize).Load()),
				Until: time.Duration(l.at(offset + 2*wordSize).Load()),
			})
		}
	}
	return all
}
