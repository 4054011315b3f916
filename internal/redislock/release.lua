-- release frees the lock if the token holds it, or gives it to the first in the queue, and wakes
-- its watchers. It returns 1, or 0 if the token does not hold the lock. With an entry it first
-- removes the entry from the queue, and returns 2 if it did only that. With a nonce as well, it frees
-- the lock only if the lock was served to that nonce. It adds 10 if there is more to drop from the
-- queue, and 20 if the lock waits to be claimed. ARGV: token, entry, the entry in another form,
-- nonce or ''
local lock, queue, token, entry = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local nonce = (ARGV[4] or '') ~= '' and ARGV[4]
local holder = redis.call('GET', lock)
if not queue or redis.call('EXISTS', queue) == 0 then
	if holder == token and not nonce then
		redis.call('DEL', lock)
		redis.pcall('PUBLISH', lock, '') -- a user who may not publish can still release
		return 1
	end
	if queue then -- a write, so that a read-only replica, which may lag, refuses
		redis.call('ZREM', queue, '')
	else
		redis.call('SETRANGE', lock, 0, '')
	end
	--include refused
	return refused(holder)
end
local ownTTL, expired = nil, not holder
--include queue
--include serve
local left = 0
if entry then
	local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)[1]
	left = redis.call('ZREM', queue, entry, ARGV[3])
	seen(string.match(entry, '^%S+')) -- its process is alive
	if head and (head == entry or head == ARGV[3]) then
		tellHead(math.max(redis.call('PTTL', lock), 0))
	end
end
local frees = holder == token and (not nonce or redis.call('ZSCORE', queue, nonce))
if holder and not frees then
	redis.call('ZREM', queue, '') -- as above
	dropQueue()
	return left * 2
end
--include handoff
