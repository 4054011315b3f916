package demand_test

import (
	"testing"

	"github.com/golockers/locker/internal/demand"
	"github.com/stretchr/testify/assert"
)

func TestMark(t *testing.T) {
	for token, want := range map[string]string{
		"":                "",
		"token":           "",
		"web/x~@A1~B2":    "A1",
		"~@A~B":           "A",
		"a~@x~@A~B":       "A",
		"a~b~@A~B":        "A",
		"a~@A~B ":         "",
		"a~@A~":           "",
		"a~@~B":           "",
		"a~A~B":           "",
		"a~@A B~C":        "",
		"a~@A~b~C":        "",
		"@A~B":            "",
		"token:1:x~@A1~B": "A1",
	} {
		assert.Equal(t, want, demand.Mark(token), "%q", token)
	}
}
