// Package owner has the labels that tokens begin with.
package owner

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxLabel is the longest label in bytes. A token with a label stays below a token's 1,024 bytes.
const MaxLabel = 900

// Check returns an error if label cannot be the beginning of a token.
func Check(label string) error {
	switch {
	case len(label) > MaxLabel:
		return fmt.Errorf("owner label of %d bytes, more than %d", len(label), MaxLabel)
	case !utf8.ValidString(label):
		return fmt.Errorf("owner label %q is not UTF-8", label)
	case strings.ContainsFunc(label, unicode.IsControl):
		return fmt.Errorf("control character in owner label %q", label)
	}
	return nil
}

var start = time.Now()

// Process returns the label of this process: its host, its id and when it began, since in a container
// every process may have the same id.
var Process = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil || Check(host) != nil || host == "" || len(host) > MaxLabel/2 {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), start.UTC().Format("20060102T150405Z"))
})
