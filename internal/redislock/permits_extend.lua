-- permits_extend does for the permit that the token holds what extend does for a lock. It returns
-- the permit's number, or 0. ARGV: token, ttl
local token = ARGV[1]
--include permits
if not own then
	redis.call('ZREM', queue, '') -- a write, so that a read-only replica, which may lag, refuses
	return refusedByAll()
end
choose(own)
redis.call('PEXPIRE', lock, ARGV[2])
unmark() -- from here on the token holds the permit by its own request, not by a grant
return own
