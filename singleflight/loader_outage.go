package singleflight

import (
	"fmt"
	"sync"
	"time"
)

// coolDown is how long a backend is left alone after it has failed.
const coolDown = time.Second

// outage remembers that a backend failed, so that not every caller finds out for itself, which may take as
// long as a dial timeout. An error may have to do with the key alone (an entry that is damaged, say): so it
// is first that key alone for which the backend is left alone, and with an error for another key, and
// no success in between, all keys.
type outage struct {
	mu     sync.Mutex
	err    error     // the last failure; nil at first
	key    string    // whose that was
	until  time.Time // the end of the cool-down
	all    bool      // whether it is for all keys
	worked bool      // whether an operation has succeeded since
}

// during returns an error during the cool-down, and nil when the backend is to be tried. When the cool-down
// for all keys ends, one caller tries, and the others go on without until that one has come back.
func (o *outage) during(key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil || !o.all && key != o.key {
		return nil
	}
	now := time.Now()
	if !now.Before(o.until) {
		if o.all {
			o.until = now.Add(coolDown)
		}
		return nil
	}
	return &noAnswerError{"not asked so soon after it failed", o.err}
}

func (o *outage) failed(key string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil && key != o.key && !o.worked {
		o.all = true
	}
	o.err, o.key, o.until, o.worked = err, key, time.Now().Add(coolDown), false
}

// succeeded says that the backend works, though perhaps not for the key that failed.
func (o *outage) succeeded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.worked = true
	if o.all {
		o.all, o.err = false, nil
	}
}

// repaired says that key, too, is fine again.
func (o *outage) repaired(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.key == key {
		o.err = nil
	}
}

// noAnswerError says that a backend did not answer in time, or was not asked at all.
type noAnswerError struct {
	why string
	err error
}

func (e *noAnswerError) Error() string { return fmt.Sprintf("%s: %v", e.why, e.err) }
func (e *noAnswerError) Unwrap() error { return e.err }
