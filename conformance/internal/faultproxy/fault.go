package faultproxy

import (
	"bytes"
	"slices"
	"sync"
)

// Kind is what happens to the request that a fault affects.
type Kind int

const (
	// HoldRequest holds back the request, and what follows it on its connection, until Release.
	HoldRequest Kind = iota
	// StrandRequest holds back the request until Release, and ends the client's connection at once. With
	// HTTP/2 it is HoldRequest, since the other streams of the connection would end as well.
	StrandRequest
	// HoldReply holds back the reply until Release.
	HoldReply
	// DropReply ends the connection instead of delivering the reply, once the server has executed
	// the request.
	DropReply
	// HalfReply delivers the first half of the reply and ends the connection.
	HalfReply
	// GarbageReply delivers bytes that are not a reply in any protocol, and ends the connection.
	GarbageReply
	// ResetRequest delivers the first half of the request and resets the connection.
	ResetRequest
	// CloseRequest drops the request and closes the connection.
	CloseRequest
	// GarbageRequest is CloseRequest after a garbage reply.
	GarbageRequest
)

func (k Kind) String() string {
	return [...]string{
		"is held back on its way to the server",
		"is held back on its way to the server, and the connection ends for the client",
		"is executed by the server, and the reply is held back",
		"is executed by the server, and the connection ends in place of the reply",
		"is executed by the server, and the connection ends after half of the reply",
		"is executed by the server, and the reply is garbage",
		"reaches the server in part, and the connection is reset",
		"never reaches the server, and the connection is closed",
		"never reaches the server, and the reply is garbage",
	}[k]
}

// onRequest reports whether the fault affects the request, not its reply.
func (k Kind) onRequest() bool {
	switch k {
	case HoldRequest, StrandRequest, ResetRequest, CloseRequest, GarbageRequest:
		return true
	}
	return false
}

// holds reports whether the fault holds back a request.
func (k Kind) holds() bool { return k == HoldRequest || k == StrandRequest }

// Fault is a fault that is or was armed.
type Fault struct {
	kind Kind
	left int    // requests until it acts; guarded by the proxy's mu
	next *Fault // armed when this one acts, or nil

	tokens []string // requests that contain one of these count
	others []string // other requests that contain one of these do not count
	only   bool     // other requests do not count at all
	each   bool     // acts on each request that counts, until Disarm

	Hit      chan struct{} // closed when it begins to act
	goOn     chan struct{} // closed by Release
	Answered chan struct{} // closed when the server has answered the request, or no longer can
	released sync.Once
	finished sync.Once
}

func newFault(kind Kind, n int) *Fault {
	return &Fault{kind: kind, left: n, Hit: make(chan struct{}), goOn: make(chan struct{}), Answered: make(chan struct{})}
}

// then returns what is armed when f acts.
func (f *Fault) then() *Fault {
	if !f.each {
		return f.next
	}
	again := newFault(f.kind, 1)
	again.tokens, again.others, again.only, again.each = f.tokens, f.others, f.only, true
	return again
}

// Release delivers what is held back. It may be called repeatedly, and before anything is held
// back.
func (f *Fault) Release() { f.released.Do(func() { close(f.goOn) }) }

func (f *Fault) finish() { f.finished.Do(func() { close(f.Answered) }) }

// concerns reports whether a request that begins with these bytes counts.
func (f *Fault) concerns(b []byte) bool {
	has := func(names []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return bytes.Contains(b, []byte(name)) })
	}
	return has(f.tokens) || !f.only && !has(f.others)
}

// Acted reports whether the fault has begun to act.
func (f *Fault) Acted() bool {
	select {
	case <-f.Hit:
		return true
	default:
		return false
	}
}
