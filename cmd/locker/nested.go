package main

// How a run finds out that it is part of one that holds the same lock.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
)

// heldVariable in a command's environment has marks of the tokens that hold the locks under which it
// runs. The server decides whether one of them holds a lock now: names and URLs do not tell.
const heldVariable = "LOCKER_HELD"

// mark stands for a token. It does not let anybody release the lock.
func mark(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:12])
}

// checkNested returns an error if this run would wait for one that it is part of: the lock is held by
// that, or by several such runs all permits.
func checkNested(b *backend.Backend, f runFlags) error {
	marks := strings.Fields(os.Getenv(heldVariable))
	inspector, ok := b.Locker.(locker.Inspector)
	if len(marks) == 0 || !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	heldByUs := func(key string) bool {
		info, err := inspector.Inspect(ctx, key) // an error will be that of the acquisition, too
		return err == nil && info.Token != "" && slices.Contains(marks, mark(info.Token))
	}
	if f.permits == 0 {
		if heldByUs(f.key) {
			return withStatus(statusUsage, "the lock %q is held by the run that this one is part of, "+
				"so it would wait for itself", f.key)
		}
		return nil
	}
	for i := range f.permits {
		if !heldByUs(fmt.Sprintf("%s/%d", f.key, i+1)) {
			return nil
		}
	}
	return withStatus(statusUsage, "the runs that this one is part of hold all permits of %q, "+
		"so it would wait for itself", f.key)
}
