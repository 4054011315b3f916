-- refused returns a script's reply about a lock that its token does not hold: 0, or an error about a
-- value that package redigo wrote, "<expiry>:<token>", or that is a plain time. EncodeToken keeps tokens
-- from looking like that.
local function refused(holder)
	local digits, rest = string.match(holder or '', '^(%d+)(.*)$')
	if digits and (string.find(rest, '^:.') or
		#digits >= 9 and #digits <= 15 and (rest == '' or string.find(rest, '^%.%d+$'))) then
		return redis.error_reply('FOREIGN ' .. string.sub(holder, 1, 64))
	end
	return 0
end
