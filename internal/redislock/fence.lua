-- fence returns the next number of the counter KEYS[1] (see count), or 0 if the token does not hold
-- the lock KEYS[2]. ARGV: token
local function count()
	--include count
end
local fence = count() -- in any case a write, so that a read-only replica refuses
local holder = redis.call('GET', KEYS[2])
if holder == ARGV[1] then
	return fence
end
--include refused
return refused(holder)
