-- SQLite 3.42. Its clock is truncated to a millisecond.

-- name: schema
CREATE TABLE IF NOT EXISTS {table} (
	name    BLOB NOT NULL PRIMARY KEY,
	token   BLOB NOT NULL,
	expires INTEGER NOT NULL,
	fence   INTEGER NOT NULL,
	UNIQUE (expires, name)
) WITHOUT ROWID

-- name: now
CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000

-- name: acquire
INSERT INTO {table} (name, token, expires, fence) VALUES (:key, :token, {now} + :ttl + 1000, 0)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, expires = excluded.expires
WHERE token IN (x'', excluded.token) OR expires <= {now}
RETURNING 1

-- name: extend
UPDATE {table} SET expires = {now} + :ttl + 1000 WHERE {held} RETURNING 1

-- name: release
UPDATE {table} SET token = x'', expires = {now} WHERE {held} RETURNING 1

-- name: fence
UPDATE {table} SET fence = max(fence + 1, {now}) WHERE {held} RETURNING fence

-- name: held
name = :key AND token = :token AND expires > {now}

-- name: inspect
SELECT name, token, expires - {now} FROM {table}
WHERE name = :key AND token <> x'' AND expires > {now}

-- name: list
SELECT name, token, expires - {now} FROM {table}
WHERE name >= :prefix AND substr(name, 1, length(:prefix)) = :prefix AND token <> x'' AND expires > {now}

-- name: sweep
DELETE FROM {table} WHERE name IN (
	SELECT name FROM {table} WHERE expires < {now} - :age AND fence < {now} - :age ORDER BY expires LIMIT 100)

-- Each row is what is wrong with a setting.
-- name: check
SELECT 'the database is in memory, where no other process sees it; use a file, or package memory'
FROM pragma_database_list WHERE name = 'main' AND file = ''
UNION ALL SELECT 'busy_timeout is ' || timeout || ' ms, so a statement fails while another writes; set it to 5000'
FROM pragma_busy_timeout WHERE timeout < 1000
UNION ALL SELECT 'journal_mode is ' || journal_mode || ', so the file may be damaged when a process dies; set it to WAL'
FROM pragma_journal_mode WHERE journal_mode IN ('off', 'memory')
UNION ALL SELECT 'SQLite ' || sqlite_version() || ' is older than 3.42' WHERE unixepoch('subsec') IS NULL

-- name: guard_schema
CREATE TABLE IF NOT EXISTS {table} (
	name  BLOB NOT NULL PRIMARY KEY,
	fence INTEGER NOT NULL
) WITHOUT ROWID

-- name: guard
INSERT INTO {table} (name, fence) VALUES (:key, :fence)
ON CONFLICT (name) DO UPDATE SET fence = max(fence, excluded.fence) RETURNING fence
