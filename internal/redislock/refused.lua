-- refused returns a script's reply if its token does not hold the lock: 0, or an error if the value
-- was written by package redigo, "<expiry>:<token>", or is a plain time. EncodeToken prevents
-- tokens from looking like that.
local function refused(holder)
	local digits, rest = string.match(holder or '', '^(%d+)(.*)$')
	if digits and (string.find(rest, '^:.') or
		#digits >= 9 and #digits <= 15 and (rest == '' or string.find(rest, '^%.%d+$'))) then
		return redis.error_reply('FOREIGN ' .. string.sub(holder, 1, 64))
	end
	return 0
end
