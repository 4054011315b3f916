-- release_lock does what release.lua describes, with the script's lock, queue, token, entry, former
-- and nonce. share is its share of the entries that one script may drop from queues, and of the
-- processes that one script may ask whether they are alive.
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
most, batch = math.ceil(most * share), math.ceil(batch * share)
--include serve
local left = 0
if entry then
	local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)[1]
	left = redis.call('ZREM', queue, entry, former)
	seen(string.match(entry, '^%S+')) -- its process is alive
	if head and (head == entry or head == former) then
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
