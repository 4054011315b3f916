package lincheck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Report describes a history that is not linearizable: all of it, what of it is wrong by itself,
// and how far that can be explained. Each of its checks gives up after timeout.
func Report(history []Op, but Leniency, timeout time.Duration) string {
	core := reduce(history, but, timeout)
	_, info := porcupine.CheckOperationsVerbose(model().ToModel(), operations(core, but), timeout)
	var longest []porcupine.Operation
	for _, key := range info.PartialLinearizationsOperations() {
		for _, partial := range key {
			if len(partial) > len(longest) {
				longest = partial
			}
		}
	}
	var explained []string
	var ids []int
	for _, o := range longest {
		in := o.Input.(input)
		explained = append(explained, fmt.Sprintf("%v(%s) = %v", in.kind, in.token, o.Output.(output).outcome))
		if in.kind == expire {
			explained[len(explained)-1] = fmt.Sprintf("expire(%d)", in.id)
		} else {
			ids = append(ids, in.id)
		}
	}
	var rest []Op
	for i, op := range core {
		if !slices.Contains(ids, i+1) {
			rest = append(rest, op)
		}
	}
	return fmt.Sprintf("%s\nnot linearizable even if only this is known:\n\n%s\nthe most that can be explained:\n\n%s\n\n"+
		"and then not:\n\n%s", lines(history), lines(core), strings.Join(explained, "\n"), lines(rest))
}

// reduce returns a history that is known less well, as long as it is not linearizable: without
// refusals, which had no effect, and with outcomes that are unknown.
func reduce(history []Op, but Leniency, timeout time.Duration) []Op {
	for i := len(history) - 1; i >= 0; i-- {
		less := slices.Clone(history)
		switch op := &less[i]; {
		case op.Outcome == Yes:
			op.Outcome, op.Fence, op.Until = Unknown, 0, 0
		case op.Outcome == No && op.Kind != Wait && !(but.Twice && op.Kind == Acquire):
			less = slices.Delete(less, i, i+1)
		default: // it may have had an effect
			continue
		}
		if Check(less, but, timeout) == porcupine.Illegal {
			history = less
		}
	}
	return history
}

func lines(history []Op) string {
	var all strings.Builder
	for _, op := range history {
		all.WriteString(op.String() + "\n")
	}
	return all.String()
}
