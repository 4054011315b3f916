--include tell

-- The first in the queue looks after this time, since no message tells it that a permit was
-- released as a lock.
local poll = 1000

-- tellGrant does what tellGrant in queue.lua does. The message also names the permit, and the proof
-- covers its number.
local function tellGrant(channel, nonce, ticket)
	local time = clock[1] .. ' ' .. clock[2]
	local proof = redis.sha1hex(ticket .. ' ' .. time .. ' ' .. permit .. ' ' .. nonce)
	return tell(channel, nonce, ticket, 'grant ' .. time .. ' ' .. proof .. ' ' .. permit)
end

-- parse also returns how many permits the entry's waiter counts.
local function parse(entry)
	local channel, nonce, claim, ttl, permits, owner = string.match(entry, '^(%S+) (%S+) (%d+) (%d+)/(%d+) (.*)$')
	return channel, nonce, claim, ttl, owner, tonumber(permits)
end

-- remaining returns the least and the greatest remaining time of the first n permits. The least is
-- 0 if one of them is free or is not among the keys. A permit without an expiry does not count.
local function remaining(n)
	local least, greatest = math.huge, 0
	if n > count then
		least = 0
	end
	for i = 1, math.min(n, count) do
		local ms = redis.call('PTTL', KEYS[i + 1])
		if ms >= 0 then
			least, greatest = math.min(least, ms), math.max(greatest, ms)
		elseif ms == -2 then
			least = 0
		end
	end
	return least, greatest
end

-- tellHead tells the first in the queue that it is the first, and when to look. It returns whether
-- there is one.
local function tellHead()
	local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
	if head[1] then
		local channel, nonce, _, _, _, permits = parse(head[1])
		tell(channel or '', nonce or '', head[2], 'head ' .. math.min(remaining(permits or 0), poll))
	end
	return head[1] ~= nil
end

local function want() -- nothing to do: it is for locks that linger
end

local function keepQueue(least) -- the queue outlives the permit that lasts longest
	local before = redis.call('PTTL', queue) - margin
	redis.call('PEXPIRE', queue, string.format('%.0f', math.max(least, before, 0) + margin))
end
