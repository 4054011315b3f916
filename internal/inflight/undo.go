package inflight

// Go runs call, which undoes an operation for token that has failed, in a goroutine. To
// [Calls.Wait] it is a call that was left behind. A panic in it is not recovered.
func (c *Calls) Go(token string, call func()) {
	a := Go(func() (struct{}, error) {
		call()
		return struct{}{}, nil
	})
	if !c.Leave(token, a.Done(), a.Leave) {
		_, _ = a.Result() // it has ended; it may have panicked
	}
}
