package backend

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// address is a parsed URL. The methods that take an option remove it and remember the first
// mistake, which check returns.
type address struct {
	scheme   string
	user     string
	password string
	inURL    bool     // the URL has a password
	sentinel string   // the password of the sentinels
	hosts    []string // host or host:port
	path     string   // without the leading slash
	options  map[string]string
	err      error

	connections int
}

var errURL = errors.New("the backend URL cannot be parsed: it is scheme://[user:password@]host:port, " +
	"and in a password every character but letters and digits must be percent-encoded (/ is %2F, @ is %40); " +
	"or set LOCKER_PASSWORD instead")

var errNothingAfterHosts = errors.New("nothing may follow the hosts")

// parse splits a URL. Package net/url knows only one host, and its errors quote parts of the URL that
// may be parts of a password.
func parse(c Config) (*address, error) {
	scheme, rest, ok := strings.Cut(c.URL, "://")
	if !ok || scheme == "" || strings.ContainsFunc(scheme, func(r rune) bool { return !isSchemeByte(r) }) {
		return nil, fmt.Errorf("the backend must be a URL that begins with one of %s", strings.Join(Schemes(), ", "))
	}
	authority, after := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, after = rest[:i], rest[i:]
	}
	if strings.Contains(after, "@") { // a password with one of these characters would end up here
		return nil, errURL
	}
	a := &address{
		scheme: strings.ToLower(scheme), password: c.Password, sentinel: c.SentinelPassword,
		connections: max(c.Connections, 1),
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, hasPassword := strings.Cut(authority[:i], ":")
		authority, a.inURL = authority[i+1:], hasPassword
		var err1, err2 error
		if a.user, err1 = url.PathUnescape(user); hasPassword {
			a.password, err2 = url.PathUnescape(password)
		}
		if err1 != nil || err2 != nil {
			return nil, errURL
		}
	}
	if authority != "" {
		a.hosts = strings.Split(authority, ",")
	}
	u, err := url.Parse(after)
	if err != nil || u.Fragment != "" {
		return nil, errURL
	}
	a.path = strings.TrimPrefix(u.Path, "/")
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errURL
	}
	a.options = map[string]string{}
	for name, value := range values {
		if len(value) > 1 {
			a.fail(fmt.Errorf("option %q is given more than once", name))
		}
		a.options[name] = value[0]
	}
	return a, nil
}

func isSchemeByte(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '+'
}

// name returns the URL as messages show it.
func (a *address) name() string {
	name := a.scheme + "://" + strings.Join(a.hosts, ",")
	if a.path != "" {
		name += "/" + a.path
	}
	return name
}

func (a *address) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// servers returns the hosts, each with a port, which is the given one if the URL has none.
func (a *address) servers(port string) []string {
	if len(a.hosts) == 0 {
		a.fail(errors.New("no host"))
	}
	servers := make([]string, len(a.hosts))
	for i, host := range a.hosts {
		server := host
		if !strings.Contains(host[strings.LastIndexByte(host, ']')+1:], ":") {
			server = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		name, number, err := net.SplitHostPort(server)
		if n, bad := strconv.ParseUint(number, 10, 16); err != nil || bad != nil || n == 0 || name == "" ||
			strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			a.fail(fmt.Errorf("%q is not host:port", host))
		}
		servers[i] = server
	}
	return servers
}

// server returns the only host.
func (a *address) server(port string) string {
	servers := a.servers(port)
	if len(servers) > 1 {
		a.fail(errors.New("more than one host"))
	}
	return append(servers, "")[0]
}

// database returns a path that is a number, or nothing.
func (a *address) database(path string) int {
	if path == "" {
		return 0
	}
	n, err := strconv.ParseUint(path, 10, 16)
	if err != nil {
		a.fail(fmt.Errorf("%q is not the number of a database", path))
	}
	return int(n)
}

func (a *address) text(name string) string {
	value := a.options[name]
	delete(a.options, name)
	return value
}

// boolean returns whether an option is true. The default is false.
func (a *address) boolean(name string) bool {
	value := a.text(name)
	if value != "" && value != "true" && value != "false" {
		a.fail(fmt.Errorf("%s=%s is neither true nor false", name, value))
	}
	return value == "true"
}

// timeout returns how long a dial or a request may take.
func (a *address) timeout() time.Duration {
	const name = "timeout"
	value := a.text(name)
	if value == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Millisecond || d > time.Minute {
		a.fail(fmt.Errorf("%s=%s is not a duration from 1ms to 1m", name, value))
	}
	return d
}

// tlsConfig returns the configuration that the options describe, for a scheme that uses TLS.
func (a *address) tlsConfig(enabled bool) *tls.Config {
	if !enabled {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.text("server-name")}
	if file := a.text("ca"); file != "" {
		pem, err := os.ReadFile(file)
		config.RootCAs = x509.NewCertPool()
		if err == nil && !config.RootCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s has no certificate in PEM format", file)
		}
		if err != nil {
			a.fail(fmt.Errorf("option ca: %w", err))
		}
	}
	cert, key := a.text("cert"), a.text("key")
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			a.fail(fmt.Errorf("options cert and key: %w", err))
		}
		config.Certificates = []tls.Certificate{pair}
	}
	config.InsecureSkipVerify = a.boolean("insecure")
	return config
}

// check returns the first mistake. All options that are known must have been taken before.
func (a *address) check() error {
	if a.err == nil && len(a.options) > 0 {
		a.err = fmt.Errorf("unknown option %q", slices.Sorted(maps.Keys(a.options))[0])
	}
	return a.err
}
