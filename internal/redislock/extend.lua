-- extend sets the remaining time of a lock and returns 1 if the token holds it, and 0 otherwise.
-- ARGV: token, ttl
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]
local holder = redis.call('GET', lock)
if holder == token then
	redis.call('PEXPIRE', lock, ARGV[2])
	if queue then -- from here on the token holds the lock by its own request, not by a grant
		redis.call('ZREMRANGEBYSCORE', queue, 0, '(1')
	end
	return 1
end
if queue then -- a write, so that a read-only replica, which may lag, refuses
	redis.call('ZREM', queue, '')
else
	redis.call('SETRANGE', lock, 0, '')
end
--include refused
return refused(holder)
