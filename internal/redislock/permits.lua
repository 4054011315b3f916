-- The keys of a script for permits are the queue and the permits, which are locks. In the queue,
-- the marks of each permit have scores of their own, since each permit has its own holder.
local queue, count = KEYS[1], #KEYS - 1

local lock, permit, mark -- of the chosen permit: its key, its number, and the score of its marks
local function choose(i)
	lock, permit, mark = KEYS[i + 1], i, (i - 1) / 128
end

-- unmark does for the chosen permit what unmark in queue.lua does for a lock.
local function unmark()
	local claims = redis.call('ZREMRANGEBYSCORE', queue, mark + 0.5, mark + 0.5)
	local grants = redis.call('ZREMRANGEBYSCORE', queue, mark, mark)
	return claims + grants > 0, claims > 0
end

local function unclaimed() -- returns how many of the permits wait to be claimed
	return redis.call('ZCOUNT', queue, 0.5, 0.5 + (count - 1) / 128)
end

-- own is the number of the permit that the token holds, or nil.
local values, own = redis.call('MGET', unpack(KEYS, 2))
for i, value in ipairs(values) do
	if value == token then
		own = i
	end
end

--include refused
-- refusedByAll does what refused does, for a token that holds no permit.
local function refusedByAll()
	for _, value in ipairs(values) do
		local result = refused(value)
		if result ~= 0 then
			return result
		end
	end
	return 0
end

-- chooseFree chooses the first permit from number i on that is free, and reports whether there is
-- one.
local function chooseFree(i)
	for k = i, count do
		if not values[k] then
			choose(k)
			if not redis.call('GET', lock) then -- returns an error if it is not a string
				return true
			end
		end
	end
	return false
end
