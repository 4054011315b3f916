-- look takes a lock if the token holds it, if it was offered to the entry, or if it is free and the
-- entry is the next. Otherwise it puts the entry in the queue. It returns
--
--   - the number of the lock, or 0, or -1 if the holder's process may only keep it (see package demand)
--   - the remaining time of the locks
--   - how many are before the entry, and its ticket
--   - how many hear its channel on this server: -1 if that is not known, -2 if the user may not publish.
--
-- When it takes a lock, it puts another entry of the process in the queue, and tells about that one.
-- ARGV: token, ttl, entry or '' if it need not wait, its ticket if it had a place before or '', how it
-- is served (see locks.lua; 16 means that the server may count), the other entry or '', and 1 to try
-- whether the user may publish
local token, ttl, entry, ticket, how, following, try = unpack(ARGV)
entry, ticket = entry or '', ticket or ''
local entries = {['offer:' .. entry] = entry ~= '' or nil}
--include locks
--include want

-- serve offers the free locks, and returns the number of one that nobody wants.
local function serve()
	for i in ipairs(locks) do
		if not values[i] then
			local result = offer(i)
			if result == 'empty' or result == 'kept' and entry == '' then
				return i
			end
		end
	end
end

local score = queue and entry ~= '' and redis.call('ZSCORE', queue, entry)
if own or offered or score then
	touch() -- after that, what has a place already is not refused for lack of memory
end
local take = own or offered or not queue and free
if not take and free then
	local place = score or ticket ~= '' and string.format('%.0f', ticket * 32)
	if not place then
		take = serve()
	else -- those before it have not come: each may come back with its ticket
		take = free
		local before = math.min(redis.call('ZCOUNT', queue, '-inf', '(' .. place), most)
		if before > 0 then
			tell(before, 0, 1)
			redis.call('ZREMRANGEBYRANK', queue, 0, before - 1)
		end
	end
end

local listeners = -1
local function join(e, former)
	local channel = string.match(e, '^%S+')
	local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
	listeners = count.err and -1 or tonumber(count[2])
	local score = redis.call('ZSCORE', queue, e)
	if score then
		former = ticketOf(score)
	elseif former == '' then
		local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
		local clock = redis.call('TIME')
		former = math.max(ticketOf(last or 0) + 1, clock[1] * 50000 + math.floor(clock[2] / 20))
	end
	local served = how % 16
	if how >= 16 and listeners > 0 then
		served = served + 16
	end
	redis.call('ZADD', queue, string.format('%.0f', former * 32 + served), e)
	if try == '1' and type(redis.pcall('PUBLISH', channel, '')) ~= 'number' then
		listeners = -2
	end
	return {redis.call('ZRANK', queue, e), string.format('%.0f', former)}, not score
end
local function keepQueue(ms) -- longer than the locks, so that volatile-ttl evicts those first
	redis.call('PEXPIRE', queue, string.format('%.0f', math.max(ms, redis.call('PTTL', queue) - 60000, 0) + 60000))
end
how = tonumber(how or 1)

if take then
	if own then -- a late copy of a request must not shorten its time
		local ms = redis.call('PTTL', locks[own])
		if entry == '' or ms < tonumber(ttl) then
			redis.call('PEXPIRE', locks[own], ttl)
			if queue and ms > tonumber(ttl) then
				tell(head, tonumber(ttl), step)
			end
		end
	else
		redis.call('SET', locks[take], token, 'PX', ttl)
		values[take] = token
	end
	local place = {0, ''}
	if queue and entry ~= '' then
		if following ~= '' then
			place = join(following, '')
		end
		redis.pcall('ZREM', queue, entry)
		if foremost(1)[1] then
			keepQueue(tonumber(ttl))
			want(locks[take], token, '- -')
			if #locks > 1 then
				serve()
			end
		end
	end
	return {take, tonumber(ttl), place[1], place[2], listeners}
end
local refusal = refusedByAll()
if entry == '' or not queue or refusal ~= 0 then
	touch()
	if refusal ~= 0 then
		return refusal
	end
	return {string.find(values[1] or '', '~@%w+~%w+$') and -1 or 0, left(), 0, '', -1}
end
local place, isNew = join(entry, ticket)
local ms = left()
keepQueue(ms)
if values[1] and (isNew or place[1] == 0) then
	want(locks[1], values[1], '- -')
end
return {0, ms, place[1], place[2], listeners}
