-- join puts the entry at the end of the queue, unless it is there already. It sets ticket, isNew
-- and listens. The latter is 0 if the entry does not claim and no connection to this server listens
-- for it, and otherwise 1.
local ticket, isNew = redis.call('ZSCORE', queue, entry), 0
if not ticket then
	ticket = former ~= '' and redis.call('ZSCORE', queue, former)
	if ticket then
		redis.call('ZREM', queue, former)
	else
		local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
		ticket, isNew = string.format('%.0f', math.max(last + 1, clock[1] * 1000000 + clock[2])), 1
	end
	redis.call('ZADD', queue, ticket, entry)
end
seen(string.match(entry, '^%S+'))
redis.call('ZREMRANGEBYSCORE', queue, '(' .. unseen - now, '(0')
local channel, _, claim = parse(entry)
local listens = 1
if claim == '0' then
	local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
	listens = count.err and 1 or tonumber(count[2])
end
