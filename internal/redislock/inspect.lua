-- inspect returns the lock's value, or nothing if it is free, its remaining time as PTTL gives it,
-- and the number of entries in its queue, or -1 if it has none.
local lock, queue = KEYS[1], KEYS[2]
return {
	redis.call('GET', lock),
	redis.call('PTTL', lock),
	queue and redis.call('ZCOUNT', queue, 1, '+inf') or -1,
}
