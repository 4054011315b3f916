-- inspect returns the lock's value, or nothing if it is free, its remaining time as PTTL gives it,
-- and the number of entries in its queue, or -1 if it has none. If the lock may be a permit, KEYS[3]
-- is the queue for all permits of its semaphore, and the number contains its entries.
local lock, queue, permits = KEYS[1], KEYS[2], KEYS[3]
local waiters = queue and redis.call('ZCOUNT', queue, 1, '+inf') or -1
if permits then
	waiters = waiters + redis.call('ZCOUNT', permits, 1, '+inf')
end
return {redis.call('GET', lock), redis.call('PTTL', lock), waiters}
