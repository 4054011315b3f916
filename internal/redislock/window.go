package redislock

import (
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/window"
)

// WindowKey returns the key of the counts of key in windows of length per.
func (n *Namespace) WindowKey(key string, per time.Duration) string {
	return n.mark + "window:" + n.scope + strconv.FormatInt(per.Milliseconds(), 10) + ":" + key
}

// WindowArgs returns the arguments of [Window] after the number to add: for a rule, or without a
// limit if it has none.
func WindowArgs(r window.Rule) []any {
	limit, previous := r.Limit, int64(1)
	if limit == 0 {
		limit = -1
	}
	if r.Fixed {
		previous = 0
	}
	return []any{r.Per.Milliseconds(), limit, previous}
}

// WindowReply is the reply to [Window].
type WindowReply struct {
	Counts  window.Counts
	Counted bool
}

// ParseWindow reads the reply to [Window], if there is one.
func ParseWindow(reply any, err error) (r WindowReply, _ error) {
	if err != nil {
		return r, err
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != 4 {
		return r, fmt.Errorf("unexpected reply to a count: %v", reply)
	}
	var numbers [4]int64
	for i, part := range parts {
		if numbers[i], ok = part.(int64); !ok {
			return r, fmt.Errorf("unexpected reply to a count: %v", reply)
		}
	}
	return WindowReply{
		Counted: numbers[0] == 1,
		Counts: window.Counts{
			Current: numbers[1], Previous: numbers[2], Left: time.Duration(numbers[3]) * time.Microsecond,
		},
	}, nil
}
