-- window adds to the count of the present window unless that exceeds a limit, and returns whether it
-- did (1 or 0), the counts of this window and the one before, and the rest of this window in
-- microseconds. The value is "<number> <current> <previous>", the number that of the window in which
-- current was counted. KEYS[1] is the counter. ARGV: what to add, the length of the window in ms,
-- the limit or -1, 1 if the window before counts or 0
local n, per, limit = tonumber(ARGV[1]), ARGV[2] * 1000, tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local number = math.floor(now / per)
local left = per - (now - number * per)
local stored, current, previous = number, 0, 0
local value = redis.call('GET', KEYS[1])
if value then
	local s, c, p = string.match(value, '^(%d+) (%d+) (%d+)$')
	if not s then
		return redis.error_reply('ERR the key holds something other than a count')
	end
	stored = tonumber(s)
	if stored >= number then -- greater if the clock was set back
		current, previous = tonumber(c), tonumber(p)
	elseif stored == number - 1 then
		previous = tonumber(c)
	end
end
local counted = 1
if limit >= 0 and current + n + math.floor(previous * left / per) * ARGV[4] > limit then
	counted, n = 0, 0
end
if n > 0 or stored > number then
	current = math.min(current + n, 9e15)
	redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f', number, current, previous),
		'PX', math.ceil((left + per) / 1000))
else
	redis.call('SETRANGE', KEYS[1], 0, '') -- a write, so that a read-only replica, which may lag, refuses
end
return {counted, current, previous, left}
