-- releases does for each of several locks what release does without an entry, and returns a list of
-- the replies, some of which may be errors. KEYS: the locks, and then their queues. ARGV: the tokens
local count, results, freed = #ARGV, {}, {}
local holders = redis.call('MGET', unpack(KEYS, 1, count))
local queues = redis.call('EXISTS', unpack(KEYS, count + 1))
local isFreed = {}
for i, token in ipairs(ARGV) do
	local lock = KEYS[i]
	if holders[i] == token and not isFreed[lock] and
		(queues == 0 or redis.call('EXISTS', KEYS[count + i]) == 0) then
		isFreed[lock], freed[#freed + 1], results[i] = true, lock, 1
	end
end
if freed[1] then -- the first write, so that an error means that nothing was done
	redis.call('DEL', unpack(freed))
	for _, lock in ipairs(freed) do
		redis.pcall('PUBLISH', lock, '')
	end
end

local share = 1 / count -- of each release in what the script may drop
local function release(lock, queue, token)
	local entry, former, nonce
	--include release_lock
end
for i, token in ipairs(ARGV) do
	if not results[i] then
		local ok, result = pcall(release, KEYS[i], KEYS[count + i], token)
		results[i] = ok and result or type(result) == 'table' and result or redis.error_reply(result)
	end
end
return results
