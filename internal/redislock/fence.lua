-- fence returns the next number of the counter KEYS[1], as a string since Lua's numbers are exact up to
-- 2^53 only, or 0 when the token does not hold the lock KEYS[2].
-- ARGV: token
redis.call('INCR', KEYS[1])
local holder = redis.call('GET', KEYS[2])
if holder == ARGV[1] then
	return redis.call('GET', KEYS[1])
end
--include refused
return refused(holder)
