// Package backend opens the Locker that a URL names. Each kind of server has a file of its own, and
// a row in the table of schemes.
//
// No error of this package contains a password, and neither does [Backend.Name]: they are for
// messages.
package backend

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/golockers/locker"
)

// Backend is an open connection to the servers that keep the locks.
type Backend struct {
	Locker locker.Locker
	Name   string // the URL without its user, password and options
	Close  func() error
}

// Config says what to open.
type Config struct {
	URL              string
	Password         string // if the URL has none
	SentinelPassword string

	// Connections is how many requests can be under way at a time. With one, requests are sent in the
	// order in which they are made.
	Connections int
}

// scheme is a kind of backend.
type scheme struct {
	names    []string // of its URLs
	form     string   // an example for the user
	explains string

	// open connects lazily: a server that does not answer is an error of the Locker.
	open func(a *address) (locker.Locker, func() error, error)
}

// schemes lists the backends in the order of the help.
var schemes = []scheme{
	redisScheme, sentinelScheme, clusterScheme, redigoScheme, postgresScheme, mysqlScheme, sqliteScheme,
	etcdScheme, memcacheScheme,
}

// Help describes the URLs, one a line.
func Help() string {
	var b strings.Builder
	for _, s := range schemes {
		fmt.Fprintf(&b, "  %s\n      %s\n", s.form, strings.ReplaceAll(s.explains, "\n", "\n      "))
	}
	return b.String()
}

// Schemes returns the beginnings of the URLs.
func Schemes() []string {
	var names []string
	for _, s := range schemes {
		for _, name := range s.names {
			names = append(names, name+"://")
		}
	}
	return names
}

// UnavailableError means that the URL is right, as far as is known, but its servers are not there.
type UnavailableError struct{ cause error }

func (e *UnavailableError) Error() string { return e.cause.Error() }
func (e *UnavailableError) Unwrap() error { return e.cause }

// Open returns the backend of a URL. An error other than [*UnavailableError] means that the URL or
// a password is wrong.
func Open(c Config) (*Backend, error) {
	a, err := parse(c)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(schemes, func(s scheme) bool { return slices.Contains(s.names, a.scheme) })
	if i < 0 {
		return nil, fmt.Errorf("unknown backend %.32q: use one of %s", a.scheme+"://", strings.Join(Schemes(), ", "))
	}
	l, closing, err := schemes[i].open(a)
	if unavailable := (*UnavailableError)(nil); errors.As(err, &unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w; its form is %s", a.name(), err, schemes[i].form)
	}
	return &Backend{Locker: l, Name: a.name(), Close: closing}, nil
}
