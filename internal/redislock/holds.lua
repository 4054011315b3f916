-- holds reports whether the token holds the lock: 1 or 0.
-- ARGV: token
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
	return 1
end
--include refused
return refused(holder)
