// Package owner validates the labels that tokens begin with.
package owner

import (
	"fmt"
	"strings"
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
