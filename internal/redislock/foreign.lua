-- foreign reports whether a lock's value was written by package redigo, "<expiry>:<token>", or is a
-- plain time. EncodeToken keeps tokens from looking like that.
local function foreign(value)
	local digits, rest = string.match(value, '^(%d+)(.*)$')
	return digits and (string.find(rest, '^:.') or
		#digits >= 9 and #digits <= 15 and (rest == '' or string.find(rest, '^%.%d+$')))
end
