-- holds reports whether the token holds the lock: 1 or 0.
-- ARGV: token
local holder = redis.call('GET', KEYS[1])
redis.call('SETRANGE', KEYS[1], 0, '') -- a write, so that a read-only replica, which may lag, refuses
if holder == ARGV[1] then
	return 1
end
--include refused
return refused(holder)
