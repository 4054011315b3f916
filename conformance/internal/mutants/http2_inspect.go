package mutants

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/golockers/locker"
)

// Inspect asks the server, which keeps the locks in memory and knows all about them.
func (l http2Lock) Inspect(ctx context.Context, key string) (locker.Info, error) {
	none := locker.Info{Key: key}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	text, err := l.ask(ctx, "inspect", key, "", 0)
	if ended := over(ctx); ended != nil {
		return none, ended
	}
	if err != nil {
		return none, err
	}
	_, info, err := readInfo(text)
	if err != nil {
		return none, err
	}
	info.Key = key
	return info, nil
}

// List asks for pages, each after the last key of the one before. The last page is empty.
func (l http2Lock) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		for last := ""; ; {
			text, err := l.ask(ctx, "list", prefix, last, 0)
			if ended := over(ctx); ended != nil {
				err = ended
			}
			lines := strings.Split(text, "\n")
			if err == nil && lines[len(lines)-1] != "end" {
				err = fmt.Errorf("unexpected response %.100q", text)
			}
			if err != nil {
				yield(locker.Info{}, err)
				return
			}
			if len(lines) == 1 {
				return
			}
			for _, line := range lines[:len(lines)-1] {
				key, info, err := readInfo(line)
				if err != nil {
					yield(locker.Info{}, err)
					return
				}
				last, info.Key = key, key
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// writeInfo writes an Info as readInfo reads it: names in hexadecimal, since they are any bytes.
func writeInfo(info locker.Info) string {
	return fmt.Sprintf("k%x t%x %d %d", info.Key, info.Token, info.TTL, info.Waiters)
}

func readInfo(line string) (key string, info locker.Info, err error) {
	var name, token []byte
	fields := strings.Fields(line)
	if len(fields) != 4 || fields[0][0] != 'k' || fields[1][0] != 't' {
		return "", info, fmt.Errorf("unexpected response %.100q", line)
	}
	_, err = fmt.Sscanf(fields[2]+" "+fields[3], "%d %d", &info.TTL, &info.Waiters)
	for i, into := range []*[]byte{&name, &token} {
		if err == nil && len(fields[i]) > 1 {
			_, err = fmt.Sscanf(fields[i][1:], "%x", into)
		}
	}
	info.Token = string(token)
	return string(name), info, err
}

// list writes the page of held locks after a key.
func (h http2Handler) list(ctx context.Context, w http.ResponseWriter, prefix, last string) {
	const page = 500
	var all []locker.Info
	for info, err := range h.locks.List(ctx, prefix) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if info.Key > last {
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b locker.Info) int { return strings.Compare(a.Key, b.Key) })
	var b bytes.Buffer
	for _, info := range all[:min(page, len(all))] {
		fmt.Fprintln(&b, writeInfo(info))
	}
	b.WriteString("end")
	w.Write(b.Bytes())
}
