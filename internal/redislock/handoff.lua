-- handoff is the end of a release. It gives the lock, which is free or about to be freed, to the next
-- in the queue, even if the token has lost the lock. It uses what serve uses, and two variables more:
-- frees reports whether the token held the lock, and left is 1 if the entry has left the queue.
local result, isClaim = serve()
if result ~= 'served' then
	redis.call('DEL', lock)
end
if frees then
	redis.pcall('PUBLISH', lock, '')
end
if result == 'empty' then
	dropQueue()
end
local outcome = frees and 1 or left * 2
if result == 'more' then
	return outcome + 10
end
return outcome + (isClaim and result == 'served' and 20 or 0)
