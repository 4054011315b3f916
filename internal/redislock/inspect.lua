-- inspect returns the value of the lock KEYS[1], or nothing if it is free, its remaining time as PTTL
-- gives it, and the number of places in its queues, the other keys, or -1 if it has none.
local waiters = KEYS[2] and 0 or -1
for k = 2, #KEYS do
	waiters = waiters + redis.call('ZCARD', KEYS[k])
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), waiters}
