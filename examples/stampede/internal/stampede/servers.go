package stampede

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Gone waits until exists is false.
func Gone(ctx context.Context, exists func() (bool, error)) error {
	for {
		if there, err := exists(); err != nil || !there {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Number finds the line of text that begins with name and returns the number after it.
func Number(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("the server does not tell its %s", strings.Trim(name, " :"))
}

// CountingConn counts the reads from it.
type CountingConn struct {
	net.Conn
	Reads *atomic.Int64
}

func (c *CountingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.Reads.Add(1)
	}
	return n, err
}
