-- count returns the next fencing number: one more than the last, and at least the server's time in
-- microseconds. So numbers keep growing when the counter was lost, or replaced by an older copy of
-- itself. It is a string, since Lua's numbers are exact up to 2^53 only. KEYS[1] is the counter
local number = redis.call('INCR', KEYS[1])
local clock = redis.call('TIME')
local now = clock[1] .. string.format('%06d', clock[2])
if number < tonumber(now) then
	redis.call('SET', KEYS[1], now)
end
return redis.call('GET', KEYS[1])
