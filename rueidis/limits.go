package rueidis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"

	"github.com/redis/rueidis"

	"github.com/golockers/locker/internal/misuse"
)

// A client does not export its options, so these limits hold for all clients.
const (
	replyTimeout = 5 * time.Second  // to requests for subscriptions
	callTimeout  = 30 * time.Second // at least; rueidis gives up a connection sooner, unless it sends no pings
	againFor     = time.Second      // a call that another one has disturbed is tried again for so long
	linger       = time.Second      // of the connection that is not needed any more; it counts against the BlockingPoolSize
	maxLooks     = 64               // under way at a server: they share a few connections with all else
)

var (
	errNoClient = misuse.New("rueidis: nil client")
	errLifetime = misuse.New("rueidis: the client has a ConnLifetime, after which it may repeat requests; " +
		"use a client without one")
	errNoReply = fmt.Errorf("no reply within %v", callTimeout)
)

// check returns an error for a client that cannot be used.
func check(client rueidis.Client) error {
	v := reflect.ValueOf(client)
	switch {
	case client == nil, v.Kind() == reflect.Pointer && v.IsNil(): // some versions of NewClient return such a pointer
		return errNoClient
	case hasLifetime(v):
		return errLifetime
	}
	return nil
}

var (
	optionType = reflect.TypeFor[*rueidis.ClientOption]()
	clientType = reflect.TypeFor[rueidis.Client]()
)

// hasLifetime reports whether the connections of a client have a lifetime. A client keeps its
// options, or only this one, in fields that are not exported. One that wraps another is looked into.
func hasLifetime(client reflect.Value) bool {
	if client.Kind() == reflect.Pointer {
		client = client.Elem()
	}
	if client.Kind() != reflect.Struct {
		return false
	}
	for field, v := range client.Fields() {
		switch {
		case field.Name == "hasLftm" && v.Kind() == reflect.Bool && v.Bool():
			return true
		case field.Type == optionType && !v.IsNil() && v.Elem().FieldByName("ConnLifetime").Int() > 0:
			return true
		case field.Type == clientType && !v.IsNil() && hasLifetime(v.Elem()):
			return true
		}
	}
	return false
}

// isOfOthers reports whether err, the outcome of a call whose context has not ended, is the error
// of another call's context. If that context ends during a dial, or during a call that has a
// connection for itself, all callers that wait for the connection get its error. None of their
// requests has been sent.
func isOfOthers(err error) bool {
	return errors.Is(err, context.Canceled) || err == context.DeadlineExceeded
}

// isDial reports whether there was no connection to send the request on.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
