-- release takes entries out of the queue, frees the lock that the token holds or that is offered to
-- one of the entries, or offers it to the next, and wakes its watchers. It returns 1 if it
-- freed a lock, and otherwise 0, plus 10 for each second in which an offer has to be claimed. If it
-- frees nothing but a lock is free, it makes the first in the queue look, which its last holder has
-- not told.
-- ARGV: token, how many of them or '', entries
local token, many = ARGV[1], tonumber(ARGV[2] or '')
local entries = {}
for k = 3, #ARGV do
	entries['offer:' .. ARGV[k]] = true
end
--include locks
local isNext, isTouched = false, false
for k = 3, #ARGV do
	local rank = queue and redis.call('ZRANK', queue, ARGV[k])
	if rank then
		isNext = isNext or rank < head
		redis.call('ZREM', queue, ARGV[k])
		isTouched = true
	end
end
local result, claim = 0, 0
for i, lock in ipairs(locks) do
	if values[i] == token or entries[values[i]] then
		local outcome, seconds
		if queue then
			outcome, seconds = offer(i)
		end
		if outcome ~= 'offered' then
			redis.call('DEL', lock)
		end
		redis.pcall('PUBLISH', lock, '') -- a user who may not publish can still release
		result, claim = 1, seconds or claim
	end
end
if result == 0 then
	if not isTouched then
		touch()
	end
	if queue and free then
		tell(many or head, 0, many and 2 or step)
	elseif isNext then
		tell(head, left(), step)
	end
	local refusal = refusedByAll()
	if refusal ~= 0 then
		return refusal
	end
end
return result + 10 * claim
