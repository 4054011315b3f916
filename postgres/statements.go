package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are those of one table. Each operation is one statement, which the server executes as
// one step. When a statement has waited for a row that another one was changing, PostgreSQL
// evaluates its conditions and new values again, on the changed row, as long as they refer to the
// row itself: a subquery of the table would see it as it was.
type statements struct {
	acquire, extend, release, fence string // of the operations
	acquireAlone                    string // for a lock that no client waits for,
	extendAlone, releaseAlone       string // as these
	look, join, leave               string // of the queue
	releaseGranted                  string // release, if the lock was handed to one of these nonces
	mark                            string // of Watch
	inspect, list, sweep            string
	describe                        string // of a connection that listens
}

const (
	// acquire writes nothing while another token holds the lock: without the first condition, an
	// attempt would lock the row, which is a write that the holder has to wait for. The expiry
	// counts from after a wait for the row. If there is a queue then, none of its processes is alive,
	// or they hang; the next release passes them over, or hands them the lock for their ttl.
	acquireSQL = `
INSERT INTO {table} AS l (key, token, expires)
SELECT $1::bytea, $2::bytea, clock_timestamp() + $3::interval
WHERE NOT EXISTS (
	SELECT FROM {table} AS h
	WHERE h.key = $1 AND h.token NOT IN ('', $2) AND h.expires > clock_timestamp())
ON CONFLICT (key) DO UPDATE SET token = $2, expires = clock_timestamp() + $3, granted = NULL
WHERE CASE WHEN l.token <> '' AND l.expires > clock_timestamp() THEN l.token = $2
	ELSE l.queue IS NULL OR {is overdue} OR NOT EXISTS (
		SELECT FROM {queue} WHERE q.e->>'token' <> encode($2, 'hex') AND {is alive}) END
RETURNING {commit}, {tell head}`

	// From here on the token holds the lock by its own request, not by a grant.
	extendSQL = `
UPDATE {table} AS l SET expires = clock_timestamp() + $3::interval, granted = NULL
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
RETURNING {commit}, {tell head}`

	// These do as much as acquire, extend and release if there is neither a queue nor a watcher, at
	// half the cost for the server, and otherwise nothing. The first one is for a waiter, which joins
	// the queue if it is refused, so it may as well lock the row.
	acquireAloneSQL = `
INSERT INTO {table} AS l (key, token, expires, granted)
VALUES ($1::bytea, $2::bytea, clock_timestamp() + $3::interval, $4::text)
ON CONFLICT (key) DO UPDATE SET token = $2, expires = clock_timestamp() + $3,
	granted = CASE WHEN l.token = $2 AND l.expires > clock_timestamp() THEN NULL ELSE $4 END
WHERE CASE WHEN l.token <> '' AND l.expires > clock_timestamp() THEN l.token = $2 ELSE l.queue IS NULL END
RETURNING {commit}`

	extendAloneSQL = `
UPDATE {table} AS l SET expires = clock_timestamp() + $3::interval, granted = NULL
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp() AND l.queue IS NULL
RETURNING {commit}`

	releaseAloneSQL = `
UPDATE {table} AS l SET token = '', expires = clock_timestamp(), granted = NULL
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
	AND l.queue IS NULL AND (l.watched IS NULL OR l.watched <= clock_timestamp())
RETURNING {commit}`

	// release hands the lock to the first in the queue that is alive, for its ttl, and otherwise
	// leaves the row for the next acquire. OFFSET 0 makes the server look for the first once, not
	// for each column.
	releaseSQL = `
UPDATE {table} AS l SET (token, expires, granted, queue) = (
	SELECT coalesce(decode(n.e->>'token', 'hex'), ''),
		clock_timestamp() + coalesce((n.e->>'ttl')::bigint, 0) * interval '1 microsecond', n.e->>'nonce',
		(SELECT jsonb_agg(q.e ORDER BY q.i) FROM {queue} WHERE q.i > n.i)
	FROM (SELECT h.i, l.queue->(h.i - 1)::int AS e FROM (
		SELECT (SELECT q.i FROM {queue} WHERE {is alive} ORDER BY q.i LIMIT 1) AS i OFFSET 0) AS h) AS n)
WHERE l.key = $1 AND {is the holder} AND l.expires > clock_timestamp()
RETURNING {commit}, {tell watchers}, {tell holder}, {tell head}`

	isHolder  = `l.token = $2`
	isGranted = `l.granted = ANY ($2::text[])`

	// fence is greater than the row's last number, and than those of earlier rows of the key, which
	// were no greater than the clock when they were deleted.
	fenceSQL = `
UPDATE {table} AS l SET fence = greatest(l.fence + 1, {microseconds})
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
RETURNING l.fence, {durable}`

	// look returns whether the token holds the lock and whether another does, for how long, the
	// place of the process in the queue, whether that is in the name of this backend, or, if this
	// one is not known, of one that is alive, and the nonce that was last handed the lock.
	lookSQL = `
SELECT pg_is_in_recovery(), l.token = $2 AND l.expires > clock_timestamp(),
	l.token NOT IN ('', $2) AND l.expires > clock_timestamp(), {left}, coalesce(p.i, 0), coalesce(p.listed, false),
	coalesce(l.granted, '')
FROM {table} AS l
LEFT JOIN LATERAL (SELECT q.i, CASE WHEN $3::int IS NULL THEN {is alive}
	ELSE (q.e->>'pid')::int = $3 AND (q.e->>'start')::bigint IS NOT DISTINCT FROM $5::bigint END AS listed
	FROM {queue} WHERE split_part(q.e->>'nonce', '/', 1) = $4::text LIMIT 1) AS p ON true
WHERE l.key = $1`

	// join takes the lock if it is free and no process before this one is alive, or if it was handed
	// to one of the process's earlier nonces. Otherwise it gives the process a place at the end of
	// the queue, or changes the one that it has. If the token holds the lock, join extends it, but
	// never shortens it: a copy of the request may arrive late, when the token has extended the
	// lock. If it arrives after a later request of the process has changed the place, it does nothing.
	joinSQL = `
INSERT INTO {table} AS l (key, token, expires, granted)
VALUES ($1::bytea, $2::bytea, clock_timestamp() + $3::interval, $4::text)
ON CONFLICT (key) DO UPDATE SET (token, expires, granted, queue) = (
	SELECT CASE WHEN s.own OR s.turn THEN $2 ELSE l.token END,
		CASE WHEN s.turn OR s.own AND l.token <> $2 THEN clock_timestamp() + $3
			WHEN s.own THEN greatest(l.expires, clock_timestamp() + $3) ELSE l.expires END,
		CASE WHEN s.turn OR s.granted THEN $4 ELSE l.granted END,
		(SELECT jsonb_agg(CASE WHEN q.i = s.place THEN s.entry ELSE q.e END ORDER BY q.i)
			FROM jsonb_array_elements(coalesce(l.queue, '[]') || s.more) WITH ORDINALITY AS q (e, i)
			WHERE CASE WHEN s.turn THEN q.i > s.place WHEN s.own THEN q.i <> s.place ELSE true END)
	FROM {state} AS s)
WHERE NOT EXISTS (SELECT FROM {queue} WHERE {is ours} AND {number of q.e->>'nonce'} > {number of $4})
RETURNING l.token = $2, {left}, coalesce((SELECT q.i FROM {queue} WHERE {is ours} LIMIT 1), 0), coalesce(l.granted, ''),
	CASE WHEN l.token = $2 THEN {commit} ELSE {hasty} END, CASE WHEN l.token = $2 THEN {tell head} END`

	// leave removes the places with these nonces.
	leaveSQL = `
UPDATE {table} AS l SET queue = (
	SELECT jsonb_agg(q.e ORDER BY q.i) FROM {queue} WHERE q.e->>'nonce' <> ALL ($2::text[]))
WHERE l.key = $1 AND EXISTS (SELECT FROM {queue} WHERE q.e->>'nonce' = ANY ($2))
RETURNING {hasty}, {tell head}`

	// mark makes releases tell the watchers, until a moment. Locks are taken in the order of the
	// keys, so that two such statements do not wait for each other. A key may be given twice, if a
	// watcher came back before its mark was made.
	markSQL = `
INSERT INTO {table} AS l (key, token, expires, watched)
SELECT k, '', clock_timestamp(), clock_timestamp() + $2::interval
FROM (SELECT DISTINCT unnest($1::bytea[]) AS k) AS u ORDER BY k
ON CONFLICT (key) DO UPDATE SET watched = excluded.watched
RETURNING {hasty}`

	// The texts of bytea depend on the session's settings, those of encode do not.
	inspectSQL = `
SELECT encode(l.key, 'hex'), encode(l.token, 'hex'), {left}, coalesce(jsonb_array_length(l.queue), 0)
FROM {table} AS l
WHERE l.token <> '' AND l.expires > clock_timestamp() AND `

	inspectOne = `l.key = $1`
	inspectAll = `l.key >= $1 AND substring(l.key FOR length($1)) = $1`

	// sweep deletes rows that were not used for a while, and skips those that are being used. A row
	// whose fencing number is ahead of the clock, which was set back, stays.
	sweepSQL = `
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT l.ctid FROM {table} AS l
	WHERE l.expires <= clock_timestamp() - $1::interval AND l.fence < {microseconds}
		AND (l.watched IS NULL OR l.watched <= clock_timestamp())
	LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// describe returns the channel of the table's watchers, and how other sessions see this one. A
	// session that has changed its role does not see when it began.
	describeSQL = `
SELECT {watchers}, pg_backend_pid(), {start}
FROM (SELECT $1::regclass::oid AS tableoid) AS l, pg_stat_get_activity(pg_backend_pid()) AS a`
)

// Parts of statements. Those that begin with "tell" send a notification, when the change is
// committed.
var parts = []string{
	"{microseconds}", `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`,
	"{left}", `(extract(epoch FROM l.expires - clock_timestamp()) * 1000000)::bigint`,
	"{start}", `(extract(epoch FROM a.backend_start) * 1000000)::bigint`,

	// durable makes the server answer only when a change is on its disk, even if the server, the
	// database or the user is configured otherwise. It is evaluated only if there is a change.
	"{durable}", `CASE WHEN current_setting('synchronous_commit') = 'off'
	THEN set_config('synchronous_commit', 'on', true) END`,

	// hasty makes the server answer before that.
	"{hasty}", `set_config('synchronous_commit', 'off', true)`,

	// The state of a lock for a token: the place of its process in the queue, present or to be, the
	// entry, and what has to be appended for it; whether the lock was handed to the process, or is
	// the token's; and whether it is the process's turn, since the lock is free and nobody before it
	// is alive, or they hang.
	"{state}", `(
		SELECT coalesce(p.i, coalesce(jsonb_array_length(l.queue), 0) + 1) AS place, e.entry,
			CASE WHEN p.i IS NULL THEN jsonb_build_array(e.entry) ELSE '[]' END AS more,
			h.granted, h.granted OR h.held AND l.token = $2 AS own,
			NOT h.held AND (l.queue IS NULL OR {is overdue} OR NOT EXISTS (
				SELECT FROM {queue} WHERE (p.i IS NULL OR q.i < p.i) AND {is alive})) AS turn
		FROM (SELECT (SELECT q.i FROM {queue} WHERE {is ours} LIMIT 1) AS i) AS p,
			(SELECT t.held, t.held AND coalesce(l.granted = ANY ($5::text[]), false) AS granted
				FROM (SELECT l.token <> '' AND l.expires > clock_timestamp() AS held OFFSET 0) AS t) AS h,
			(SELECT jsonb_build_object('nonce', $4, 'token', encode($2, 'hex'),
				'ttl', (extract(epoch FROM $3::interval) * 1000000)::bigint, 'pid', a.pid, 'start', {start}) AS entry
				FROM {backend} AS a) AS e)`,
	"{queue}", `jsonb_array_elements(l.queue) WITH ORDINALITY AS q (e, i)`,
	"{is ours}", `split_part(q.e->>'nonce', '/', 1) = split_part($4, '/', 1)`,
	"{number of q.e->>'nonce'}", `split_part(q.e->>'nonce', '/', 2)::bigint`,
	"{number of $4}", `split_part($4, '/', 2)::bigint`,

	// A process is alive if its backend is connected. The list of backends may be as old as the
	// statement, so one that has connected since need not be in it. Another user's has no start.
	"{is alive}", `((q.e->>'start')::bigint > (extract(epoch FROM statement_timestamp()) * 1000000)::bigint - 100000 OR EXISTS (
		SELECT FROM pg_stat_get_activity((q.e->>'pid')::int) AS a
		WHERE coalesce({start} = (q.e->>'start')::bigint, true)))`,
	// The first of a process's waiters looks every five seconds, and the server may take as long to
	// answer it. If the lock has been free for longer than both, they hang although their
	// connections do not end: a process was stopped, or a machine vanished.
	"{is overdue}", `l.expires <= clock_timestamp() - interval '10 s'`,
	"{backend}", `(
		SELECT b.pid, b.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS b WHERE $6::int IS NULL
		UNION ALL SELECT $6::int, timestamptz 'epoch' + $7::bigint * interval '1 microsecond' WHERE $6 IS NOT NULL)`,

	// A message to a waiter goes to its process alone, whose channel is in the nonce.
	"{tell watchers}", `CASE WHEN l.watched > clock_timestamp() THEN pg_notify({watchers}, 'free ' || {key}) END`,
	"{tell holder}", `CASE WHEN l.granted IS NOT NULL
	THEN pg_notify('locker/' || split_part(l.granted, '/', 1), 'granted ' || {key} || ' ' || l.granted) END`,
	"{tell head}", `CASE WHEN l.queue IS NOT NULL
	THEN pg_notify('locker/' || split_part(l.queue->0->>'nonce', '/', 1), 'head ' || {key} || ' ' || {left}) END`,

	// The channel is the same when the table was dropped and made again. Names may be longer.
	"{watchers}", `(SELECT 'locker/' || hashtextextended(n.nspname || '.' || c.relname, 0)
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = l.tableoid)`,
	"{key}", `translate(encode(l.key, 'base64'), E'\n', '')`,
}

func newStatements(id pgx.Identifier, async bool) statements {
	commit := "{durable}"
	if async {
		commit = "{hasty}"
	}
	complete := func(statement string) string {
		return assemble(id, strings.ReplaceAll(statement, "{commit}", commit))
	}
	release := func(condition string) string {
		return complete(strings.ReplaceAll(releaseSQL, "{is the holder}", condition))
	}
	return statements{
		acquire: complete(acquireSQL), extend: complete(extendSQL), release: release(isHolder), fence: complete(fenceSQL),

		acquireAlone: complete(acquireAloneSQL),
		extendAlone:  complete(extendAloneSQL), releaseAlone: complete(releaseAloneSQL),

		look: complete(lookSQL), join: complete(joinSQL), leave: complete(leaveSQL), releaseGranted: release(isGranted),

		mark:    complete(markSQL),
		inspect: complete(inspectSQL + inspectOne), list: complete(inspectSQL + inspectAll),
		sweep:    complete(sweepSQL),
		describe: complete(describeSQL),
	}
}

// assemble puts the parts and the name of the table into a statement.
func assemble(id pgx.Identifier, statement string) string {
	r := strings.NewReplacer(parts...)
	for range 4 { // parts contain parts
		statement = r.Replace(statement)
	}
	return inTable(id, statement) // last, since a table's name may look like a part
}
