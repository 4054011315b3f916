-- permits_sweep gives the permits that are free to the first in the queue. It returns what sweep
-- returns. ARGV: a token that is in no entry
local token = ARGV[1]
--include permits
if redis.call('EXISTS', queue) == 0 then
	return 0
end
local ownTTL, expired = nil, true
--include permits_queue
--include serve
local result
local free = chooseFree(1)
while free do
	result = serve()
	if result == 'kept' then
		redis.call('DEL', lock)
	end
	free = (result == 'served' or result == 'empty') and chooseFree(permit + 1)
end
dropQueue()
return result == 'more' and 10 or unclaimed() > 0 and 20 or 0
