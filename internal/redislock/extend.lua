-- extend sets the remaining time of the lock that the token holds and returns its number, or 0 if it
-- holds none. ARGV: token, ttl
local token, entries = ARGV[1], {}
--include locks
if own then
	local ttl = tonumber(ARGV[2])
	local shortens = queue and redis.call('PTTL', locks[own]) > ttl
	redis.call('PEXPIRE', locks[own], ARGV[2])
	if shortens then
		tell(head, ttl, step)
	end
	return own
end
touch()
return refusedByAll()
