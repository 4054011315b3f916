package main

// What locker prints on stderr, and how: a command has to be stopped even if the reader of stderr
// has stalled or gone.

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

var messages struct {
	mu   sync.Mutex
	last chan struct{} // closed when the last message is printed
}

// say prints a line, after those before it, and does not wait for that.
func say(format string, args ...any) {
	line := fmt.Sprintf("locker: "+format+"\n", args...)
	printed := make(chan struct{})
	messages.mu.Lock()
	before := messages.last
	messages.last = printed
	messages.mu.Unlock()
	go func() {
		defer close(printed)
		if before != nil {
			<-before
		}
		_, _ = io.WriteString(os.Stderr, line)
	}()
}

// flush waits until all messages are printed, for as long as locker has patience with their reader.
func flush() {
	messages.mu.Lock()
	last := messages.last
	messages.mu.Unlock()
	if last == nil {
		return
	}
	select {
	case <-last:
	case <-time.After(patience):
	}
}
