-- sweep gives a free lock to the first in the queue. It returns 10 if there is more to drop from
-- the queue, 20 if the lock waits to be claimed, and 0 otherwise. ARGV: a token that is in no entry
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', queue) == 0 then
	return 0
end
if redis.call('EXISTS', lock) == 1 then
	return redis.call('ZCOUNT', queue, 0.5, 0.5) * 20
end
local ownTTL, expired = nil, true
--include queue
--include serve
local result, isClaim = serve()
if result == 'empty' then
	redis.call('DEL', queue)
end
if result == 'kept' then
	redis.call('DEL', lock)
end
return result == 'more' and 10 or isClaim and result == 'served' and 20 or 0
