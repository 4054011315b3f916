-- MySQL 8.0 and MariaDB 10.6. Their UPDATE returns no columns, so the answer is the argument of
-- LAST_INSERT_ID, which comes with the statement's own result, whatever clientFoundRows counts.

-- name: schema
CREATE TABLE IF NOT EXISTS {table} (
	name    VARBINARY(1024) NOT NULL PRIMARY KEY,
	token   VARBINARY(1024) NOT NULL,
	expires BIGINT NOT NULL,
	fence   BIGINT NOT NULL,
	INDEX (expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- name: now
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- A column that was assigned has its new value further on: token = :token there means yes.
-- name: acquire
INSERT INTO {table} (name, token, expires, fence) VALUES (:key, :token, {now} + :ttl + 1, LAST_INSERT_ID(1))
ON DUPLICATE KEY UPDATE
	token = IF(LAST_INSERT_ID(token IN ('', :token) OR expires <= {now}), :token, token),
	expires = IF(token = :token, {now} + :ttl + 1, expires)

-- name: extend
UPDATE {table} SET expires = LAST_INSERT_ID({now} + :ttl + 1) WHERE {held}

-- name: release
UPDATE {table} SET token = '', expires = LAST_INSERT_ID({now}) WHERE {held}

-- name: fence
UPDATE {table} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {now})) WHERE {held}

-- name: held
name = :key AND token = :token AND expires > {now}

-- name: inspect
SELECT name, token, expires - {now} FROM {table}
WHERE name = :key AND token <> '' AND expires > {now}

-- name: list
SELECT name, token, expires - {now} FROM {table}
WHERE name >= :prefix AND LEFT(name, LENGTH(:prefix)) = :prefix AND token <> '' AND expires > {now}

-- name: sweep
DELETE FROM {table} WHERE expires < {now} - :age AND fence < {now} - :age ORDER BY expires LIMIT 100

-- Each row is what is wrong with a setting.
-- name: check
SELECT 'autocommit is off, so no change would last; turn it on' FROM DUAL WHERE @@autocommit = 0

-- name: guard_schema
CREATE TABLE IF NOT EXISTS {table} (
	name  VARBINARY(1024) NOT NULL PRIMARY KEY,
	fence BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- name: guard
INSERT INTO {table} (name, fence) VALUES (:key, LAST_INSERT_ID(:fence))
ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence, :fence))
