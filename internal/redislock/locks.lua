-- The keys are the queue and the locks of which a waiter takes one: a single lock, or the permits of
-- a semaphore. A key alone is a lock without its queue, as while its slot migrates. The script around
-- this has the token, and entries, whose keys are the values of locks that are offered to its caller.
local queue = KEYS[2] and KEYS[1]
local locks = queue and {unpack(KEYS, 2)} or KEYS
local values, own, offered, free = {}, nil, nil, nil -- the locks' values, and the numbers of three of them
for i, lock in ipairs(locks) do
	local value = redis.call('GET', lock)
	values[i] = value
	if value == token then
		own = i
	elseif entries[value] then
		offered = i
	elseif not value then
		free = free or i
	end
end
--include refused
local function refusedByAll()
	for i = 1, #locks do
		local result = refused(values[i])
		if result ~= 0 then
			return result
		end
	end
	return 0
end

local function touch() -- a write without effect, so that a read-only replica, which may lag, refuses
	if queue then
		redis.call('ZREM', queue, '')
	else
		redis.call('SETRANGE', locks[1], 0, '')
	end
end

local function left() -- the least remaining time, as PTTL gives it
	local least
	for _, lock in ipairs(locks) do
		local ms = redis.call('PTTL', lock)
		if not least or ms >= 0 and (ms < least or least == -1) then
			least = ms
		end
	end
	return least
end

-- publish sends a message to the process of an entry. It returns how many this server has told, or
-- nil if the user may not publish.
local function publish(entry, message)
	local channel, id = string.match(entry, '^(%S+) (%S+)$')
	if not channel then
		return 0
	end
	local told = redis.pcall('PUBLISH', channel, id .. ' ' .. message)
	return type(told) == 'number' and told or nil
end

-- foremost returns the first n of the queue, and their scores. In a slot that migrates the key is not
-- to be used any more when its last member is gone.
local function foremost(n)
	local entries = redis.pcall('ZRANGE', queue, 0, n - 1, 'WITHSCORES')
	return entries.err and {} or entries
end

-- tell makes the first n of the queue look: the foremost in ms milliseconds, and each of the others
-- a step later.
local function tell(n, ms, step)
	local entries = foremost(n)
	for k = 1, #entries, 2 do
		publish(entries[k], string.format('%.0f', math.max(ms, 0) + (k - 1) / 2 * step))
	end
end
local head, step, most = 2, 25, 1000 -- how many are told that they are next; and how many at all

-- A score is a ticket, times 32, plus how the entry is served: the seconds that it has to claim a
-- lock, and 16 if the server counts those that hear its channel. No two tickets are the same.
local function ticketOf(score) return math.floor(score / 32) end

-- offer gives a lock to the first in the queue whose process hears it, if that claims it in time. It
-- returns 'offered', and the time for that in seconds; 'empty'; or 'kept' if it may not be offered.
-- Unless it is offered, the caller must set or delete the lock.
local function offer(i)
	for _ = 1, most do
		local first = foremost(1)
		local entry = first[1]
		if not entry then
			return 'empty'
		end
		local permits = tonumber(string.match(entry, ' [^.]*%.(%d+)%.') or 0)
		if permits > 0 and i > permits then -- it counts fewer permits
			return 'kept'
		end
		local told = publish(entry, 'offer')
		if not told then -- the waiters poll
			return 'kept'
		end
		redis.call('ZREM', queue, entry)
		local how = first[2] % 32
		if how < 16 or told > 0 then
			local claim = math.max(how % 16, 1)
			-- After another write it is not refused for lack of memory.
			redis.call('SET', locks[i], 'offer:' .. entry, 'PX', claim * 1000)
			values[i] = 'offer:' .. entry
			tell(head, claim * 1000 + step, step)
			return 'offered', claim
		end
	end
	tell(64, 0, step)
	return 'kept'
end
