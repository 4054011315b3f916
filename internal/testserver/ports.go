package testserver

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that the kernel gives to outgoing connections. From that
// range a client's own connection could take the port of a server that is stopped and about to
// restart, or even be connected to itself by dialling it. The second port of a cluster node lies
// 10,000 above, and below that range as well.
const (
	firstPort = 10_000
	lastPort  = 22_700
)

// freePort finds a port that no process listens on at the moment. If spare is not 0, the port at
// that distance is free as well.
func freePort(spare int) (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if free(port) && (spare == 0 || free(port+spare)) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found")
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
