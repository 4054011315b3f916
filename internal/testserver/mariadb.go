package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// MariaDBUser is the administrator of the servers that [MariaDB] starts, and MariaDBDatabase the
// database that they have. There are no passwords.
const (
	MariaDBUser     = "root"
	MariaDBDatabase = "app"
)

var mariadbKind = kind{
	program: "mariadbd",
	in:      "/usr/sbin",
	user:    "nobody", // Debian's package of the program alone creates no account
	prepare: func(s *Server) error {
		install, err := exec.LookPath("mariadb-install-db")
		if err != nil {
			return err
		}
		const database = "CREATE DATABASE IF NOT EXISTS " + MariaDBDatabase + ";\n"
		if err := os.WriteFile(filepath.Join(s.dir, "init.sql"), []byte(database), 0o644); err != nil {
			return err
		}
		return s.runAt(install, "--no-defaults", "--datadir="+s.data(), "--tmpdir="+s.dir,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
			"--innodb-log-file-size=8M")
	},
	args: func(s *Server) []string {
		return []string{
			"--no-defaults", "--datadir=" + s.data(), "--tmpdir=" + s.dir, "--bind-address=127.0.0.1",
			"--port=" + strconv.Itoa(s.port), "--socket=" + s.MariaDBSocket(),
			"--init-file=" + filepath.Join(s.dir, "init.sql"),
			"--pid-file=" + filepath.Join(s.dir, "pid"), "--skip-name-resolve", "--max-connections=1000",
			"--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=2",
		}
	},
	dir: func(addr string) (string, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", err
		}
		out, err := exec.Command("mariadb", "--no-defaults", "--host="+host, "--port="+port, "--user="+MariaDBUser,
			"--batch", "--skip-column-names", "--execute=SELECT @@datadir").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return filepath.Dir(strings.TrimRight(strings.TrimSpace(string(out)), "/")), nil
	},
}

// MariaDB starts a MariaDB server with an empty database. args are added to its command line, for
// instance "--innodb-lock-wait-timeout=1". After a Restart it has recovered its data as it does
// after a crash. It does not wait for the disk, so a test does not depend on its speed.
func MariaDB(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, mariadbKind, args)
}

// MariaDBSocket is the path of the Unix domain socket of a server that [MariaDB] started.
func (s *Server) MariaDBSocket() string { return filepath.Join(s.dir, "socket") }
