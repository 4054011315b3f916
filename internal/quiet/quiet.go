// Package quiet keeps what go-redis logs out of the output of tests that do not run with -v. The
// main_test.go of a package that uses go-redis imports it for that, without a name.
package quiet

import (
	"context"
	"flag"
	"log"
	"testing"

	"github.com/redis/go-redis/v9"
)

func init() { redis.SetLogger(logger{}) }

type logger struct{}

func (logger) Printf(_ context.Context, format string, args ...any) {
	// A process that a test starts has not parsed any flags.
	if flag.Parsed() && testing.Verbose() {
		log.Printf("redis: "+format, args...)
	}
}
