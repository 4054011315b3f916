-- look takes the lock and returns 1 if the token holds it, or if it is free and the token is
-- next. Otherwise, without an entry, look returns 0, or 2 if the holder's process may only keep the
-- lock (see package demand). With an entry, it puts the entry at the end
-- of the queue unless it is there already, and returns the holder's remaining time, the number of
-- entries before it, the time (two values), its ticket, whether it is new in the queue, whether
-- the lock waits to be claimed, and whether the entry's process listens on this server (always 1
-- for an entry that claims). ARGV: token, ttl, entry, the entry in another form in which it may
-- be in the queue
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]
local free = redis.call('SET', lock, token, 'PX', ARGV[2], 'NX')
if free and (not queue or redis.call('EXISTS', queue) == 0) then
	return 1
end

-- renew gives the lock its ttl again. For an entry that is no shorter one: a copy of this request
-- may arrive late, when the token has extended the lock.
local function renew()
	local left = redis.call('PTTL', lock)
	if not ARGV[3] or left < 0 or left < tonumber(ARGV[2]) then
		redis.call('PEXPIRE', lock, ARGV[2])
	end
end
if not queue then
	if redis.call('GET', lock) == token then
		renew()
		return 1
	end
	return 0
end
local ownTTL, expired = ARGV[2], true
--include queue
--include serve
--include refused
if free then
	local result = serve()
	if result == 'more' then
		redis.call('DEL', lock)
	elseif result ~= 'served' then
		redis.call('SET', lock, token, 'PX', ARGV[2])
	end
end
local entry, former = ARGV[3], ARGV[4]

--include claim
local holder = redis.call('GET', lock)
if holder == token then
	if entry then
		redis.call('ZREM', queue, entry, former)
		seen(string.match(entry, '^%S+'))
	end
	local wasServed, isUnclaimed = unmark()
	if isUnclaimed and isClaim() then
		redis.call('PEXPIRE', lock, ARGV[2])
	else
		renew()
	end
	if wasServed then
		keepQueue(tonumber(ARGV[2]))
		tellHead(ARGV[2])
	end
	if redis.call('ZCOUNT', queue, 1, '+inf') == 0 then
		redis.call('DEL', queue)
	end
	return 1
end
local refusal = refused(holder)
if refusal ~= 0 then
	return refusal
end
if not entry then
	return holder and string.find(holder, '~@%w+~%w+$') and 2 or 0
end
--include join
local left = redis.call('PTTL', lock)
keepQueue(left)
local before = redis.call('ZCOUNT', queue, 1, '(' .. ticket)
if holder and (isNew == 1 or before == 0) then
	want(holder, '- -')
end
local claimed = redis.call('ZCOUNT', queue, 0.5, 0.5)
return {left, before, clock[1], clock[2], ticket, isNew, claimed, listens}
