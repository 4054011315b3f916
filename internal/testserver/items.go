package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// MemcachedItems returns a line about each item of a memcached, such as "key=k exp=-1 la=… cas=…".
// memcached serves only one such request at a time, so MemcachedItems may have to wait.
func MemcachedItems(ctx context.Context, addr string) ([]string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewScanner(conn)
	for {
		if _, err := fmt.Fprint(conn, "lru_crawler metadump all\r\n"); err != nil {
			return nil, err
		}
		var items []string
		for lines.Scan() && lines.Text() != "END" && !strings.HasPrefix(lines.Text(), "BUSY") {
			items = append(items, lines.Text())
		}
		switch {
		case lines.Text() == "END":
			return items, nil
		case !strings.HasPrefix(lines.Text(), "BUSY"):
			return nil, errors.Join(lines.Err(), io.ErrUnexpectedEOF)
		}
		time.Sleep(time.Millisecond)
	}
}
