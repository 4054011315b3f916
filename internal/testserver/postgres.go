package testserver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Of Debian's packages, which put most programs into no PATH, and of the account that they create.
const (
	postgresPrograms = "/usr/lib/postgresql/*/bin"
	postgresAccount  = "postgres"
)

// PostgresUser is the superuser of the servers that [Postgres] starts. There are no passwords.
const PostgresUser = "postgres"

var postgresKind = kind{
	program: "postgres",
	in:      postgresPrograms,
	user:    postgresAccount,
	prepare: initialize,
	args: func(s *Server) []string {
		return []string{
			"-D", s.data(), "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "max_connections=1000", "-c", "fsync=off",
		}
	},
	pid: func(addr string) (int, error) {
		// The first line of the file is the process id.
		file, err := postgresQuery(addr, "postgres", "SELECT pg_read_file('postmaster.pid')")
		if err != nil {
			return 0, err
		}
		line, _, _ := strings.Cut(file[0], "\n")
		return strconv.Atoi(line)
	},
}

// initialized has what initdb makes, as an archive in a file without a name, which ends with the
// process. initdb takes more than a second of a processor, and a package starts dozens of servers.
var initialized struct {
	mu      sync.Mutex
	archive *os.File // nil at first
	size    int64
}

// initialize makes the data of a new server.
func initialize(s *Server) error {
	done, err := s.initializeFirst()
	if done || err != nil {
		return err
	}
	tar := exec.Command("tar", "-xf", "-")
	tar.Stdin = io.NewSectionReader(initialized.archive, 0, initialized.size)
	return s.runHere(tar)
}

// initializeFirst makes the data of the first server, and the archive for all others. It reports
// whether s is the first.
func (s *Server) initializeFirst() (first bool, err error) {
	initialized.mu.Lock()
	defer initialized.mu.Unlock()
	if initialized.archive != nil {
		return false, nil
	}
	if err := s.run("initdb", "--pgdata", s.data(), "--username", PostgresUser, "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"); err != nil {
		return false, err
	}
	file, err := os.CreateTemp("", "testserver-")
	if err != nil {
		return false, err
	}
	tar := exec.Command("tar", "-cf", "-", filepath.Base(s.data()))
	tar.Stdout = file
	err = errors.Join(os.Remove(file.Name()), s.runHere(tar))
	info, statErr := file.Stat()
	if err = errors.Join(err, statErr); err != nil {
		return false, errors.Join(err, file.Close())
	}
	initialized.archive, initialized.size = file, info.Size()
	return true, nil
}

// runHere runs a program in the server's directory, as the server's user.
func (s *Server) runHere(cmd *exec.Cmd) error {
	var output bytes.Buffer
	cmd.Dir, cmd.Stderr = s.dir, &output
	if err := runAs(cmd, s.kind.user); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, &output)
	}
	return nil
}

// Postgres starts a PostgreSQL server with an empty database "postgres". args are added to its
// command line, for instance "-c", "fsync=on". After a Restart it has recovered its data as it does
// after a crash. It cannot be paused.
func Postgres(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, postgresKind, args)
}

// PostgresStandby starts a server that follows another one, and that only answers queries.
func PostgresStandby(tb testing.TB, primary *Server, args ...string) *Server {
	tb.Helper()
	standby := postgresKind
	standby.prepare = func(s *Server) error {
		host, port, err := net.SplitHostPort(primary.Addr)
		if err != nil {
			return err
		}
		return s.run("pg_basebackup", "--pgdata", s.data(), "--host", host, "--port", port,
			"--username", PostgresUser, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
	}
	return start(tb, standby, args)
}

// sharedMemory returns the id of the System V segment of the PostgreSQL in a directory, which it needs
// to notice another one there, or "".
func sharedMemory(dir string) string {
	file, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	lines := strings.Split(string(file), "\n")
	if err != nil || len(lines) < 7 {
		return ""
	}
	fields := strings.Fields(lines[6]) // the key and the id
	if len(fields) != 2 {
		return ""
	}
	return fields[1]
}

// removeSharedMemory removes what a killed PostgreSQL leaves behind: the kernel keeps it, and after
// some thousand of them it has no more.
func removeSharedMemory(dir string) {
	if id := sharedMemory(dir); id != "" {
		_ = exec.Command("ipcrm", "-m", id).Run()
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// run runs a program that is installed beside the server, as the server's user.
func (s *Server) run(program string, args ...string) error {
	return s.runAt(filepath.Join(filepath.Dir(s.path), program), args...)
}

func (s *Server) runAt(path string, args ...string) error {
	return s.runHere(exec.Command(path, args...))
}

var pgbouncerKind = kind{
	program: "pgbouncer",
	in:      "/usr/sbin",
	user:    postgresAccount,
	args:    func(s *Server) []string { return []string{filepath.Join(s.dir, "pgbouncer.ini")} },
	pid: func(addr string) (int, error) {
		// Its directory, and so the name of this file, is the server's own.
		settings, err := postgresQuery(addr, "pgbouncer", "SHOW CONFIG")
		if err != nil {
			return 0, err
		}
		for i := 0; i+1 < len(settings); i++ {
			if settings[i] == "pidfile" {
				file, err := os.ReadFile(settings[i+1])
				if err != nil {
					return 0, err
				}
				return strconv.Atoi(strings.TrimSpace(string(file)))
			}
		}
		return 0, fmt.Errorf("no pidfile in %q", settings)
	},
}

// PgBouncer starts a PgBouncer in transaction mode before a server of [Postgres].
func PgBouncer(tb testing.TB, server *Server) *Server {
	tb.Helper()
	k := pgbouncerKind
	// The port is known only now.
	k.args = func(s *Server) []string {
		host, port, _ := net.SplitHostPort(server.Addr)
		config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
admin_users = %s
pool_mode = transaction
default_pool_size = 100
server_login_retry = 0.2
max_client_conn = 1000
pidfile = %s
`, host, port, PostgresUser, s.port, PostgresUser, filepath.Join(s.dir, "pid"))
		if err := os.WriteFile(filepath.Join(s.dir, "pgbouncer.ini"), []byte(config), 0o644); err != nil {
			s.tb.Errorf("testserver: %v", err)
		}
		_ = os.Remove(filepath.Join(s.dir, "pid")) // of one that was killed
		return pgbouncerKind.args(s)
	}
	return start(tb, k, nil)
}

// postgresQuery runs one query on a connection of its own and returns all values of its rows. It
// knows what servers without passwords send.
func postgresQuery(addr, database, query string) ([]string, error) {
	conn, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	send := func(kind string, body string) {
		message := binary.BigEndian.AppendUint32([]byte(kind), uint32(4+len(body)))
		_, err = conn.Write(append(message, body...))
	}
	if send("", "\x00\x03\x00\x00user\x00"+PostgresUser+"\x00database\x00"+database+"\x00\x00"); err != nil {
		return nil, err
	}
	var values []string
	for asked := false; ; {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return nil, err
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 1<<20 {
			return nil, fmt.Errorf("not PostgreSQL: %q", head)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(conn, body); err != nil {
			return nil, err
		}
		switch head[0] {
		case 'Z': // ready for a query
			if asked && len(values) == 0 {
				return nil, errors.New("the query returned nothing")
			} else if asked {
				return values, nil
			}
			asked = true
			if send("Q", query+"\x00"); err != nil {
				return nil, err
			}
		case 'D':
			values = append(values, fields(body)...)
		case 'E':
			return nil, fmt.Errorf("refused: %q", bytes.ReplaceAll(body, []byte{0}, []byte{' '}))
		}
	}
}

// fields returns the values of a row, and "" for NULL.
func fields(row []byte) (values []string) {
	if len(row) < 2 {
		return nil
	}
	for row = row[2:]; len(row) >= 4; {
		size := int(int32(binary.BigEndian.Uint32(row)))
		row = row[4:]
		size = min(max(size, 0), len(row))
		values = append(values, string(row[:size]))
		row = row[size:]
	}
	return values
}
