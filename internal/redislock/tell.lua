local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local batch, most = 256, 1024 -- entries that are read, or told, at once, and that one script drops
local unseen = 25000          -- a process that was not heard from for so long may be gone
local margin = 60000          -- the queue outlives the lock by this much

-- tell sends a message to the process of an entry; it reports whether that was allowed. Others may
-- hear it, so it names the entry by a hash of its nonce.
local function tell(channel, nonce, ticket, what)
	local id = string.sub(redis.sha1hex(nonce), 1, 16)
	local sent = redis.pcall('PUBLISH', channel, id .. ' ' .. ticket .. ' ' .. what)
	return type(sent) == 'number'
end

local function seen(channel)
	redis.call('ZADD', queue, -now, channel)
end
