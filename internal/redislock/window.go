package redislock

import (
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/window"
)

// Count runs [Window] for key and a rule, which may have no limit. s has the key in place of a token.
// send sends the script with the key of the counts and the arguments after the number to add.
func (l *Locks) Count(s *Sending, key string, r window.Rule, send func(counts string, args []string) (any, error)) (
	c window.Counts, counted bool, err error) {
	ms := strconv.FormatInt(r.Per.Milliseconds(), 10)
	limit, previous := strconv.FormatInt(r.Limit, 10), "1"
	if r.Limit == 0 {
		limit = "-1"
	}
	if r.Fixed {
		previous = "0"
	}
	reply, err := Call(&l.Caller, s, func() (windowReply, error) {
		reply, err := send(l.names.mark+"window:"+l.names.scope+ms+":"+key, []string{ms, limit, previous})
		if err != nil {
			return windowReply{}, err
		}
		return parseWindow(reply)
	})
	return reply.counts, reply.counted, err
}

type windowReply struct {
	counts  window.Counts
	counted bool
}

// parseWindow reads the reply to [Window].
func parseWindow(reply any) (r windowReply, _ error) {
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
	return windowReply{
		counted: numbers[0] == 1,
		counts: window.Counts{
			Current: numbers[1], Previous: numbers[2], Left: time.Duration(numbers[3]) * time.Microsecond,
		},
	}, nil
}
