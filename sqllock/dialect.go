package sqllock

// What a database is told: the statements of a Dialect, and how they become those of one table.

import (
	"database/sql"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Dialect is what a [Locker] knows about a kind of database. [MySQL], [SQLite] and [PostgreSQL] are
// ready to use. For another one, write its statements after the example of mysql.sql, sqlite.sql or
// postgresql.sql, whichever is nearest, and let package conformance judge them.
type Dialect struct {
	// Name is that of the database, in errors.
	Name string

	// SQL has the statements, each after a line "-- name: " and its name: schema, acquire, extend,
	// release, fence, inspect, list and sweep, and perhaps check, and guard_schema and guard for the
	// table of [Guard]. A text with another name can be put into the others by its name in braces, as
	// {table} is. Parameters are :key, :token, :prefix (bytes), :ttl and :age (microseconds), and
	// :fence. Lines that begin with two hyphens are comments. Of two
	// with one name the last counts, so a statement can be added to SQL to replace another.
	//
	// Acquire, extend, release and fence answer with a number, which is 0 or missing if the answer is
	// no; fence with the fencing number, and guard with the greatest that it has seen. Inspect and list return rows of name, token and the
	// remaining microseconds. Sweep deletes some rows of locks that have been free for an age. Check
	// returns rows of texts, which say what is wrong with the database's settings. Fence, list,
	// sweep, check and those of the guard may be missing.
	SQL string

	// Quote begins and ends a quoted name. The default is a double quote.
	Quote string

	// Bind returns what stands for the nth parameter, from 1. If it is nil, "?" stands for each.
	Bind func(n int) string

	// Number returns a statement's number, for instance [sql.Result.LastInsertId]. If it is nil, the
	// number is the only column of the only row that the statement returns.
	Number func(sql.Result) (int64, error)

	// OneWriter means that the database has one writer at a time and those who wait have no order. A
	// Locker then sends one statement at a time, so that only processes compete.
	OneWriter bool

	// Undone reports whether err means that the database has undone a statement because of others
	// that ran at the same time. If it is nil, the method SQLState of err tells.
	Undone func(err error) bool
}

var (
	//go:embed mysql.sql
	mysqlSQL string
	//go:embed sqlite.sql
	sqliteSQL string
	//go:embed postgresql.sql
	postgresqlSQL string
)

var (
	// MySQL is the dialect of MySQL 8.0 and MariaDB 10.6, or later.
	MySQL = Dialect{
		Name: "MySQL", SQL: mysqlSQL, Quote: "`", Number: sql.Result.LastInsertId, Undone: isUndoneByMySQL,
	}

	// SQLite is the dialect of SQLite 3.42 or later.
	SQLite = Dialect{Name: "SQLite", SQL: sqliteSQL, OneWriter: true}

	// PostgreSQL is the dialect of PostgreSQL 13 or later, with any driver. With pgx, package postgres
	// is better: it has a queue, and its waiters need not poll.
	PostgreSQL = Dialect{
		Name: "PostgreSQL", SQL: postgresqlSQL, Bind: func(n int) string { return "$" + strconv.Itoa(n) },
	}
)

// A statement is sent with the parameters of these names, in this order.
type statement struct {
	text  string
	names []string
}

// parameters are the values of a statement's parameters, by name.
type parameters map[string]any

func (s statement) args(p parameters) []any {
	args := make([]any, len(s.names))
	for i, name := range s.names {
		args[i] = p[name]
	}
	return args
}

var (
	heading   = regexp.MustCompile(`^-- name: *(\w+)\s*$`)
	inBraces  = regexp.MustCompile(`\{\w+\}`)
	parameter = regexp.MustCompile(`:(?:key|token|prefix|ttl|age|fence)\b`)
)

// texts returns what is under each name.
func (d Dialect) texts() map[string]string {
	texts, name := make(map[string]string), ""
	for line := range strings.Lines(d.SQL) {
		if found := heading.FindStringSubmatch(line); found != nil {
			name = found[1]
			texts[name] = "" // a later one replaces an earlier one
		} else if !strings.HasPrefix(line, "--") && name != "" {
			texts[name] += line
		}
	}
	for name, text := range texts {
		texts[name] = strings.TrimSuffix(strings.TrimSpace(text), ";")
	}
	return texts
}

// statements returns the dialect's statements for a table, whose name is quoted.
func (d Dialect) statements(table string) (map[string]statement, error) {
	texts := d.texts()
	for _, name := range []string{"schema", "acquire", "extend", "release", "inspect"} {
		if texts[name] == "" {
			return nil, fmt.Errorf("sqllock: the dialect %q has no statement %s", d.Name, name)
		}
	}
	statements := make(map[string]statement)
	for name, text := range texts {
		for range 4 { // texts contain texts
			text = inBraces.ReplaceAllStringFunc(text, func(word string) string {
				if text, ok := texts[strings.Trim(word, "{}")]; ok {
					return text
				}
				return word
			})
		}
		s := d.bind(text)
		for _, word := range inBraces.FindAllString(s.text, -1) {
			if word != "{table}" {
				return nil, fmt.Errorf("sqllock: the dialect %q has no text for %s in %s", d.Name, word, name)
			}
		}
		s.text = strings.ReplaceAll(s.text, "{table}", table) // last, since a table's name may be anything
		statements[name] = s
	}
	return statements, nil
}

// bind puts the database's own words for its parameters into a statement.
func (d Dialect) bind(text string) (s statement) {
	numbers := make(map[string]int)
	s.text = parameter.ReplaceAllStringFunc(text, func(name string) string {
		name = name[1:]
		if d.Bind == nil {
			s.names = append(s.names, name)
			return "?"
		}
		if numbers[name] == 0 {
			s.names = append(s.names, name)
			numbers[name] = len(s.names)
		}
		return d.Bind(numbers[name])
	})
	return s
}
