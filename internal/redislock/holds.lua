-- holds reports whether the token holds the lock: 1 or 0.
-- ARGV: token
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
	return 1
end
--include foreign
if holder and foreign(holder) then
	return redis.error_reply('FOREIGN ' .. string.sub(holder, 1, 64))
end
return 0
