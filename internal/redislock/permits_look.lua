-- permits_look does for permits what look does for a lock. Without an entry, it returns the number
-- of the permit that it took, or the negated number of one that the token held before, or 0. With
-- an entry, it returns the number of the token's permit, or a place in the queue as look does, with
-- the least remaining time of the permits. ARGV: token, ttl, entry, the entry in another form in
-- which it may be in the queue
local token, ttl, entry, former = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--include permits
if own and not entry then
	redis.call('ZREM', queue, '') -- a write, so that a read-only replica, which may lag, refuses
	return -own
end
local function take()
	redis.call('SET', lock, token, 'PX', ttl)
	own = permit
end
if not own and redis.call('EXISTS', queue) == 0 and chooseFree(1) then
	take()
	return own
end

local ownTTL, expired = ttl, true
--include permits_queue
--include serve
--include claim
local behind = false -- whether the first in the queue cannot use a permit that is free
local free = not own and chooseFree(1)
while free do
	local result = serve()
	if result == 'empty' or result == 'kept' then
		take()
	elseif result == 'served' and redis.call('GET', lock) == token then
		own = permit
	end
	behind = result == 'waits'
	free = result == 'served' and not own and chooseFree(permit + 1)
end

if own then
	choose(own)
	if entry then
		redis.call('ZREM', queue, entry, former)
		seen(string.match(entry, '^%S+'))
		local wasServed, isUnclaimed = unmark()
		local rest = redis.call('PTTL', lock)
		if rest < tonumber(ttl) or isUnclaimed and isClaim() then -- see renew of look
			redis.call('PEXPIRE', lock, ttl)
		end
		if wasServed then
			keepQueue(tonumber(ttl))
			tellHead()
		end
	end
	dropQueue()
	return own
end
redis.call('ZREM', queue, '') -- as above
local refusal = refusedByAll()
if refusal ~= 0 or not entry then
	return refusal
end
--include join
local before = redis.call('ZCOUNT', queue, 1, '(' .. ticket)
local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)[1]
local _, _, _, _, _, permits = parse(head)
local least, greatest = remaining(math.min(permits or 0, count))
keepQueue(greatest)
-- The first may die, and leave a permit that it has not seen, or that is beyond its own.
least = math.min(least, (before == 0 or behind) and poll or 4 * poll)
return {least == math.huge and -1 or least, before, clock[1], clock[2], ticket, isNew, unclaimed(), listens}
