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
	releaseServed                   string // release, if the lock was handed to the place with a certain nonce
	mark                            string // of Watch
	inspect, list, sweep            string
	describe                        string // of a connection that listens
}

const (
	// acquire writes nothing while another token holds the lock: without the first condition, an
	// attempt would lock the row, which is a write that the holder has to wait for. The expiry
	// counts from after a wait for the row. If there is a queue then, none of its waiters is alive,
	// or they hang; the next release passes them over, or hands them the lock for their ttl.
	acquireSQL = `
INSERT INTO {table} AS l (key, token, expires)
SELECT $1::bytea, $2::bytea, clock_timestamp() + $3::interval
WHERE NOT EXISTS (
	SELECT FROM {table} AS h
	WHERE h.key = $1 AND h.token NOT IN ('', $2) AND h.expires > clock_timestamp())
ON CONFLICT (key) DO UPDATE SET token = $2, expires = clock_timestamp() + $3, granted = NULL
WHERE CASE WHEN l.token <> '' AND l.expires > clock_timestamp() THEN l.token = $2
	ELSE l.queue_token IS NULL OR {is overdue}
		OR NOT EXISTS (SELECT FROM {queue} WHERE q.token <> $2 AND {is alive}) END
RETURNING {commit}`

	// From here on the token holds the lock by its own request, not by a grant.
	extendSQL = `
UPDATE {table} AS l SET expires = clock_timestamp() + $3::interval, granted = NULL
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
RETURNING {commit}, {tell head}`

	// These do as much as acquire, extend and release if there is neither a queue nor a watcher, at
	// half the cost for the server, and otherwise nothing. The first one is for a waiter, which joins
	// the queue if it is refused, so it may as well lock the row.
	acquireAloneSQL = `
INSERT INTO {table} AS l (key, token, expires)
VALUES ($1::bytea, $2::bytea, clock_timestamp() + $3::interval)
ON CONFLICT (key) DO UPDATE SET token = $2, expires = clock_timestamp() + $3, granted = NULL
WHERE CASE WHEN l.token <> '' AND l.expires > clock_timestamp() THEN l.token = $2 ELSE l.queue_token IS NULL END
RETURNING {commit}`

	extendAloneSQL = `
UPDATE {table} AS l SET expires = clock_timestamp() + $3::interval, granted = NULL
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp() AND l.queue_token IS NULL
RETURNING {commit}`

	releaseAloneSQL = `
UPDATE {table} AS l SET token = '', expires = clock_timestamp()
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
	AND l.queue_token IS NULL AND (l.watched IS NULL OR l.watched <= clock_timestamp())
RETURNING {commit}`

	// release hands the lock to the first in the queue that is alive, for its ttl, and otherwise
	// leaves the row for the next acquire. A scan of an array is in its order. OFFSET 0 makes the
	// server look for the first once, not for each column.
	releaseSQL = `
UPDATE {table} AS l SET (token, expires, granted, queue_token, queue_pid, queue_start, queue_ttl, queue_nonce) = (
	SELECT coalesce(l.queue_token[n.i], ''), clock_timestamp() + coalesce(l.queue_ttl[n.i], '0'), l.queue_nonce[n.i],
		nullif(l.queue_token[n.i+1:], '{}'), l.queue_pid[n.i+1:], l.queue_start[n.i+1:], l.queue_ttl[n.i+1:],
		l.queue_nonce[n.i+1:]
	FROM (SELECT CASE WHEN l.queue_token IS NOT NULL THEN
		(SELECT q.i FROM {queue} WHERE {is alive} LIMIT 1) END AS i OFFSET 0) AS n)
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
RETURNING {commit}, {tell watchers}, {tell holder}, {tell head}`

	// isServed is what releaseServed requires in addition.
	isServed = ` AND l.granted = $3`

	// fence is greater than the row's last number, and than those of earlier rows of the key, which
	// were no greater than the clock when they were deleted.
	fenceSQL = `
UPDATE {table} AS l SET fence = greatest(l.fence + 1, {microseconds})
WHERE l.key = $1 AND l.token = $2 AND l.expires > clock_timestamp()
RETURNING l.fence, {durable}`

	// look returns whether the token holds the lock and whether another does, for how long, the
	// token's place in the queue, whether that place is in the name of this backend, or, if this
	// one is not known, of one that is alive, and the nonce of the waiter that was last handed the
	// lock.
	lookSQL = `
SELECT pg_is_in_recovery(), l.token = $2 AND l.expires > clock_timestamp(),
	l.token NOT IN ('', $2) AND l.expires > clock_timestamp(), {left}, coalesce(p.pos, 0),
	CASE WHEN p.pos IS NULL THEN false
		WHEN $3::int IS NULL THEN EXISTS (SELECT FROM {queue} WHERE q.i = p.pos AND {is alive})
		ELSE l.queue_pid[p.pos] = $3 AND l.queue_start[p.pos] = $4::timestamptz END, coalesce(l.granted, '')
FROM {table} AS l, LATERAL (SELECT array_position(l.queue_token, $2) AS pos) AS p
WHERE l.key = $1`

	// join takes the lock if it is free and no other waiter before the token is alive, and otherwise
	// puts the token at the end of the queue, or leaves it where it is, in the name of a backend: this
	// connection's if it is not given. The place has a new nonce in any case. If the token holds the
	// lock, join extends it, but never shortens it: a copy of the request may arrive late, when the
	// token has extended the lock.
	joinSQL = `
INSERT INTO {table} AS l (key, token, expires)
VALUES ($1::bytea, $2::bytea, clock_timestamp() + $3::interval)
ON CONFLICT (key) DO UPDATE SET (token, expires, queue_token, queue_pid, queue_start, queue_ttl, queue_nonce) = (
	SELECT CASE WHEN s.own OR s.turn THEN $2 ELSE l.token END,
		CASE WHEN s.own THEN greatest(l.expires, clock_timestamp() + $3)
			WHEN s.turn THEN clock_timestamp() + $3 ELSE l.expires END,
		CASE WHEN s.turn THEN nullif(l.queue_token[s.before+2:], '{}') WHEN s.own THEN l.queue_token
			ELSE l.queue_token[:s.before] || $2 || l.queue_token[s.before+2:] END,
		CASE WHEN s.turn THEN l.queue_pid[s.before+2:] WHEN s.own THEN l.queue_pid
			ELSE l.queue_pid[:s.before] || b.pid || l.queue_pid[s.before+2:] END,
		CASE WHEN s.turn THEN l.queue_start[s.before+2:] WHEN s.own THEN l.queue_start
			ELSE l.queue_start[:s.before] || b.start || l.queue_start[s.before+2:] END,
		CASE WHEN s.turn THEN l.queue_ttl[s.before+2:] WHEN s.own THEN l.queue_ttl
			ELSE l.queue_ttl[:s.before] || $3 || l.queue_ttl[s.before+2:] END,
		CASE WHEN s.turn THEN l.queue_nonce[s.before+2:] WHEN s.own THEN l.queue_nonce
			ELSE l.queue_nonce[:s.before] || $6::text || l.queue_nonce[s.before+2:] END
	FROM {state} AS s, {backend} AS b)
RETURNING l.token = $2, {left}, coalesce(array_position(l.queue_token, $2), 0), coalesce(l.granted, ''),
	CASE WHEN l.token = $2 THEN {commit} ELSE {hasty} END, CASE WHEN l.token = $2 THEN {tell head} END`

	// leave takes the token out of the queue.
	leaveSQL = `
UPDATE {table} AS l SET (queue_token, queue_pid, queue_start, queue_ttl, queue_nonce) = (
	SELECT nullif(l.queue_token[:p.pos-1] || l.queue_token[p.pos+1:], '{}'),
		l.queue_pid[:p.pos-1] || l.queue_pid[p.pos+1:],
		l.queue_start[:p.pos-1] || l.queue_start[p.pos+1:],
		l.queue_ttl[:p.pos-1] || l.queue_ttl[p.pos+1:],
		l.queue_nonce[:p.pos-1] || l.queue_nonce[p.pos+1:]
	FROM (SELECT array_position(l.queue_token, $2) AS pos) AS p)
WHERE l.key = $1 AND $2 = ANY (l.queue_token)
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

	inspectSQL = `
SELECT l.key, l.token, {left}, coalesce(cardinality(l.queue_token), 0)
FROM {table} AS l
WHERE l.key = $1 AND l.token <> '' AND l.expires > clock_timestamp()`

	listSQL = `
SELECT l.key, l.token, {left}, coalesce(cardinality(l.queue_token), 0)
FROM {table} AS l
WHERE l.key >= $1 AND substring(l.key FOR length($1)) = $1 AND l.token <> '' AND l.expires > clock_timestamp()`

	// sweep deletes rows that were not used for a while, and skips those that are being used. A row
	// whose fencing number is ahead of the clock, which was set back, stays.
	sweepSQL = `
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT l.ctid FROM {table} AS l
	WHERE l.expires <= clock_timestamp() - $1::interval AND l.fence < {microseconds}
		AND (l.watched IS NULL OR l.watched <= clock_timestamp())
	LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// describe returns the table's number and how other sessions see this one.
	describeSQL = `
SELECT $1::regclass::oid, pg_backend_pid(), a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS a`
)

// Parts of statements. Those that begin with "tell" send a notification, when the change is
// committed.
var parts = []string{
	"{microseconds}", `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`,
	"{left}", `(extract(epoch FROM l.expires - clock_timestamp()) * 1000000)::bigint`,

	// durable makes the server answer only when a change is on its disk, even if the server, the
	// database or the user is configured otherwise. It is evaluated only if there is a change.
	"{durable}", `CASE WHEN current_setting('synchronous_commit') = 'off'
	THEN set_config('synchronous_commit', 'on', true) END`,

	// hasty makes the server answer before that.
	"{hasty}", `set_config('synchronous_commit', 'off', true)`,

	// The state of a lock for a token: its place in the queue and the number of waiters before that,
	// whether it holds the lock, and whether it is its turn, since the lock is free and no waiter
	// before it is alive, or they hang.
	"{state}", `(
		SELECT p.pos, coalesce(p.pos - 1, cardinality(l.queue_token), 0) AS before,
			l.token = $2 AND l.expires > clock_timestamp() AS own,
			(l.token = '' OR l.expires <= clock_timestamp()) AND (l.queue_token IS NULL OR {is overdue} OR NOT EXISTS (
				SELECT FROM {queue} WHERE (p.pos IS NULL OR q.i < p.pos) AND {is alive})) AS turn
		FROM (SELECT array_position(l.queue_token, $2) AS pos) AS p)`,
	"{queue}", `unnest(l.queue_token, l.queue_pid, l.queue_start) WITH ORDINALITY AS q (token, pid, start, i)`,

	// A waiter is alive if its backend is connected. The list of backends may be as old as the
	// statement, so one that has connected since need not be in it. Another user's has no start.
	"{is alive}", `(q.start > statement_timestamp() - interval '100 ms' OR EXISTS (
		SELECT FROM pg_stat_get_activity(q.pid) AS a WHERE a.backend_start = q.start OR a.backend_start IS NULL))`,
	// A waiter looks every five seconds, and the server may take as long to answer it. If the lock
	// has been free for longer than both, the waiters hang although their connections do not end:
	// a process was stopped, or a machine vanished.
	"{is overdue}", `l.expires <= clock_timestamp() - interval '10 s'`,
	"{backend}", `(
		SELECT a.pid, a.backend_start AS start FROM pg_stat_get_activity(pg_backend_pid()) AS a WHERE $4::int IS NULL
		UNION ALL SELECT $4::int, $5::timestamptz WHERE $4 IS NOT NULL)`,

	// A message to a waiter goes to its process alone, whose channel is in the nonce.
	"{tell watchers}", `CASE WHEN l.watched > clock_timestamp() THEN pg_notify({channel}, 'free ' || {key}) END`,
	"{tell holder}", `CASE WHEN l.granted IS NOT NULL
	THEN pg_notify({channel} || '/' || split_part(l.granted, '/', 1),
		'granted ' || {key} || ' ' || {base64 l.token} || ' ' || l.granted) END`,
	"{tell head}", `CASE WHEN l.queue_nonce[1] IS NOT NULL
	THEN pg_notify({channel} || '/' || split_part(l.queue_nonce[1], '/', 1),
		'head ' || {key} || ' ' || {base64 l.queue_token[1]} || ' ' || {left}) END`,
	"{channel}", `'locker/' || l.tableoid`,
	"{key}", `translate(encode(l.key, 'base64'), E'\n', '')`,
	"{base64 l.token}", `translate(encode(l.token, 'base64'), E'\n', '')`,
	"{base64 l.queue_token[1]}", `translate(encode(l.queue_token[1], 'base64'), E'\n', '')`,
}

func newStatements(id pgx.Identifier, async bool) statements {
	commit := "{durable}"
	if async {
		commit = "{hasty}"
	}
	complete := func(statement string) string {
		return assemble(id, strings.ReplaceAll(statement, "{commit}", commit))
	}
	return statements{
		acquire: complete(acquireSQL),
		extend:  complete(extendSQL),
		release: complete(releaseSQL),
		fence:   complete(fenceSQL),

		acquireAlone: complete(acquireAloneSQL),
		extendAlone:  complete(extendAloneSQL), releaseAlone: complete(releaseAloneSQL),

		look:  complete(lookSQL),
		join:  complete(joinSQL),
		leave: complete(leaveSQL),

		releaseServed: complete(strings.Replace(releaseSQL, "\nRETURNING", isServed+"\nRETURNING", 1)),

		mark:     complete(markSQL),
		inspect:  complete(inspectSQL),
		list:     complete(listSQL),
		sweep:    complete(sweepSQL),
		describe: describeSQL,
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
