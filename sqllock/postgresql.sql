-- PostgreSQL 13.

-- name: schema
CREATE TABLE IF NOT EXISTS {table} (
	name    bytea NOT NULL PRIMARY KEY,
	token   bytea NOT NULL,
	expires bigint NOT NULL,
	fence   bigint NOT NULL,
	UNIQUE (expires, name)
)

-- name: now
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- Without the first condition an attempt that is refused would lock the row, which is a write.
-- name: acquire
INSERT INTO {table} AS l (name, token, expires, fence)
SELECT :key::bytea, :token::bytea, {now} + :ttl::bigint + 1, 0
WHERE NOT EXISTS (SELECT FROM {table} WHERE name = :key AND token NOT IN ('', :token) AND expires > {now})
ON CONFLICT (name) DO UPDATE SET token = :token, expires = {now} + :ttl + 1
WHERE l.token IN ('', :token) OR l.expires <= {now}
RETURNING 1

-- name: extend
UPDATE {table} SET expires = {now} + :ttl::bigint + 1 WHERE {held} RETURNING 1

-- name: release
UPDATE {table} SET token = '', expires = {now} WHERE {held} RETURNING 1

-- name: fence
UPDATE {table} SET fence = greatest(fence + 1, {now}) WHERE {held} RETURNING fence

-- name: held
name = :key::bytea AND token = :token::bytea AND expires > {now}

-- name: inspect
SELECT name, token, expires - {now} FROM {table}
WHERE name = :key::bytea AND token <> '' AND expires > {now}

-- name: list
SELECT name, token, expires - {now} FROM {table}
WHERE name >= :prefix::bytea AND substring(name FOR length(:prefix)) = :prefix AND token <> '' AND expires > {now}

-- An index serves only a clock that stands still while the statement runs.
-- name: sweep
DELETE FROM {table} WHERE name = ANY (ARRAY(
	SELECT name FROM {table} WHERE expires < {then} AND fence < {then} ORDER BY expires LIMIT 100 FOR UPDATE SKIP LOCKED))

-- name: then
(extract(epoch FROM statement_timestamp()) * 1000000)::bigint - :age::bigint

-- name: guard_schema
CREATE TABLE IF NOT EXISTS {table} (
	name  bytea NOT NULL PRIMARY KEY,
	fence bigint NOT NULL
)

-- name: guard
INSERT INTO {table} AS f (name, fence) VALUES (:key::bytea, :fence::bigint)
ON CONFLICT (name) DO UPDATE SET fence = greatest(f.fence, :fence) RETURNING fence
