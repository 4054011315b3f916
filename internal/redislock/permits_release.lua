-- permits_release does for the permit that the token holds what release does for a lock. ARGV:
-- token, entry, the entry in another form, nonce or ''
local token, entry = ARGV[1], ARGV[2]
local nonce = (ARGV[4] or '') ~= '' and ARGV[4]
--include permits
if redis.call('EXISTS', queue) == 0 then
	if own and not nonce then
		choose(own)
		redis.call('DEL', lock)
		redis.pcall('PUBLISH', lock, '') -- a user who may not publish can still release
		return 1
	end
	redis.call('ZREM', queue, '') -- a write, so that a read-only replica, which may lag, refuses
	return refusedByAll()
end
local ownTTL, expired
--include permits_queue
--include serve
local left = 0
if entry then
	local head = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)[1]
	left = redis.call('ZREM', queue, entry, ARGV[3])
	seen(string.match(entry, '^%S+')) -- its process is alive
	if head and (head == entry or head == ARGV[3]) then
		tellHead()
	end
end
if nonce then -- the permit of its mark: late copies of a request may have got the token another one
	local score = tonumber(redis.call('ZSCORE', queue, nonce) or 1)
	own = score < 1 and score % 0.5 * 128 + 1
end
local frees = own and values[own] == token
if frees then
	choose(own)
end
expired = not frees
if not frees and not chooseFree(1) then
	redis.call('ZREM', queue, '') -- as above
	dropQueue()
	return left * 2
end
--include handoff
