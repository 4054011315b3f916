-- want tells the owner of a lock's value that another token wants the lock, if the value names a
-- channel for that (see package demand), and returns how many this server has told. from is the
-- channel for the answer and a name for the demand, or '- -' if no answer is needed.
local function want(lock, value, from)
	local id = string.match(value, '~@(%w+)~%w+$')
	local mark, scope = string.match(queue, '^(.)line:([^{]*){')
	if not id or not mark then
		return 0
	end
	local told = redis.pcall('PUBLISH', mark .. 'wait:' .. scope .. id, 'want ' .. from .. ' ' .. lock)
	return type(told) == 'number' and told or 0
end
