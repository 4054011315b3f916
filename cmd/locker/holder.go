package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/spf13/cobra"
)

// ownerOf returns the label that a token begins with. A token without one is shortened: anyone
// who knows all of it can release the lock.
func ownerOf(token string) string {
	if i := strings.LastIndexByte(token, '/'); i > 0 {
		return printable(token[:i])
	}
	const shown = 8
	if len(token) > shown {
		return printable(token[:shown]) + "…"
	}
	return printable(token)
}

// printable returns a name from the server as a terminal may show it.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name {
		return quoted
	}
	return name
}

// remaining describes the time that is left to a holder, if it is known.
func remaining(info locker.Info) string {
	if info.TTL < 0 {
		return ""
	}
	return fmt.Sprintf(" for %v more", round(info.TTL))
}

// round drops the digits that change too fast to be read.
func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// state is a lock as --json shows it. What is not known is null.
type state struct {
	Time      *time.Time `json:"time,omitempty"` // of watch
	Key       string     `json:"key"`
	KeyBase64 string     `json:"key_base64,omitempty"` // if the key is not UTF-8
	Held      bool       `json:"held"`
	Owner     string     `json:"owner,omitempty"`
	Token     string     `json:"token,omitempty"`
	TTL       *float64   `json:"ttl_seconds"`
	Waiters   *int       `json:"waiters"`
}

func stateOf(info locker.Info) state {
	s := state{Key: info.Key, Held: info.Token != "", Token: info.Token}
	if !utf8.ValidString(info.Key) {
		s.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(info.Key))
	}
	if s.Held {
		s.Owner = ownerOf(info.Token)
	}
	if s.Held && info.TTL >= 0 {
		s.TTL = new(info.TTL.Seconds())
	}
	if info.Waiters >= 0 {
		s.Waiters = &info.Waiters
	}
	return s
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// describe returns the state of a lock in words.
func describe(info locker.Info) string {
	text := "free"
	if info.Token != "" {
		text = "held by " + ownerOf(info.Token) + remaining(info)
	}
	if info.Waiters > 0 {
		text += fmt.Sprintf(", %d waiting", info.Waiters)
	}
	return text
}

// oneKey checks that there is one argument, a key.
func oneKey(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return fmt.Errorf("missing key, for example: %s nightly", cmd.CommandPath())
	case args[0] == "":
		return errors.New("the key is empty")
	case len(args[0]) > 1024:
		return fmt.Errorf("the key has %d bytes, more than 1024", len(args[0]))
	}
	return nil
}

// openInspector opens a backend that reports holders, as all of them do.
func openInspector(cmd *cobra.Command) (*backend.Backend, locker.Inspector, error) {
	b, err := open(cmd, 2)
	if err != nil {
		return nil, nil, err
	}
	inspector, ok := b.Locker.(locker.Inspector)
	if !ok {
		_ = b.Close()
		return nil, nil, fmt.Errorf("%s cannot report who holds a lock", b.Name)
	}
	return b, inspector, nil
}

func jsonFlag(cmd *cobra.Command, of string) *bool {
	return cmd.Flags().Bool("json", false, "print "+of+" as a JSON object in one line")
}
