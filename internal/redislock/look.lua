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

-- isClaim reports whether the lock's time may be the one for which the entry was to claim it, which
-- may be longer than the ttl. If more is left, the token has extended the lock by its key alone, as
-- while the slot migrates, and this is a late copy of the request.
local function isClaim()
	local life = 1000
	for _, e in ipairs({entry, former}) do
		local _, _, claim = parse(e)
		life = math.max(life, tonumber(claim or 0))
	end
	return redis.call('PTTL', lock) <= life
end

local holder = redis.call('GET', lock)
if holder == token then
	if entry then
		redis.call('ZREM', queue, entry, former)
		seen(string.match(entry, '^%S+'))
	end
	local served = redis.call('ZRANGEBYSCORE', queue, 0, '(1', 'WITHSCORES')
	redis.call('ZREMRANGEBYSCORE', queue, 0, '(1')
	if served[2] == '0.5' and isClaim() then
		redis.call('PEXPIRE', lock, ARGV[2])
	else
		renew()
	end
	if served[1] then
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
local ticket, isNew = redis.call('ZSCORE', queue, entry), 0
if not ticket then
	ticket = former ~= '' and redis.call('ZSCORE', queue, former)
	if ticket then
		redis.call('ZREM', queue, former)
	else
		local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
		ticket, isNew = string.format('%.0f', math.max(last + 1, clock[1] * 1000000 + clock[2])), 1
	end
	redis.call('ZADD', queue, ticket, entry)
end
seen(string.match(entry, '^%S+'))
redis.call('ZREMRANGEBYSCORE', queue, '(' .. unseen - now, '(0')
local left = redis.call('PTTL', lock)
keepQueue(left)
local before = redis.call('ZCOUNT', queue, 1, '(' .. ticket)
if holder and (isNew == 1 or before == 0) then
	want(holder, '- -')
end
local claimed = redis.call('ZCOUNT', queue, 0.5, 0.5)
local channel, _, claim = parse(entry)
local listens = 1
if claim == '0' then
	local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
	listens = count.err and 1 or tonumber(count[2])
end
return {left, before, clock[1], clock[2], ticket, isNew, claimed, listens}
