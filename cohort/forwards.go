package cohort

import "github.com/golockers/locker"

// Forwards implements what [locker.CanWait] and its like ask for: which methods only the wrapped
// Locker makes possible.
func (l *Locker) Forwards(method string) locker.Locker {
	if method == "Wait" {
		return nil
	}
	return l.inner
}
