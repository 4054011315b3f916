--include tell

local permit   -- a lock has none; see permits_queue
local mark = 0 -- the score of the nonce of the entry that was served; 0.5 more if it has to claim the lock

-- unmark forgets through which entry the lock was served. It returns whether it was, and whether
-- the lock has not been claimed.
local function unmark()
	local last = redis.call('ZRANGEBYSCORE', queue, 0, '(1', 'WITHSCORES')
	if last[1] then
		redis.call('ZREMRANGEBYSCORE', queue, 0, '(1')
	end
	return last[1] ~= nil, last[2] == '0.5'
end

-- tellGrant tells an entry that it has the lock, with a proof that requires its nonce.
local function tellGrant(channel, nonce, ticket)
	local time = clock[1] .. ' ' .. clock[2]
	local proof = redis.sha1hex(ticket .. ' ' .. time .. ' ' .. nonce)
	return tell(channel, nonce, ticket, 'grant ' .. time .. ' ' .. proof)
end

local function parse(entry)
	return string.match(entry, '^(%S+) (%S+) (%d+) (%d+) (.*)$')
end

-- tellHead tells the first in the queue that it is the first, and how long another has the lock. It
-- returns whether there is one.
local function tellHead(left)
	local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
	if head[1] then
		local channel, nonce = parse(head[1])
		tell(channel or '', nonce or '', head[2], 'head ' .. left)
	end
	return head[1] ~= nil
end

--include want

local function keepQueue(left) -- never less than the lock, so that volatile-ttl evicts the lock first
	redis.call('PEXPIRE', queue, string.format('%.0f', math.max(left, 0) + margin))
end
