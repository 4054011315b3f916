local function dropQueue() -- unless it has entries or marks
	if redis.call('ZCOUNT', queue, 0, '+inf') == 0 then
		redis.call('DEL', queue)
	end
end

-- serve gives the lock to the first in the queue whose process is alive, whatever the lock's value
-- is at the time. It returns 'served', and whether that was a claim; 'empty'; 'kept' if it was not
-- able to; 'more' if it has dropped as many entries as one script may; or 'waits' if the lock is a
-- permit whose number is above the N of the first entry. Unless it returns 'served', the caller
-- must set or delete the lock.
--
-- From the script around it, it uses lock, queue and token; ownTTL, for which an entry of token
-- itself gets the lock without a message; and expired, which reports whether the last holder let
-- the lock expire. Before it, the script includes queue or permits_queue.
local function serve()
	local processes = {}
	local function process(channel)
		local p = processes[channel]
		if not p then
			p = {
				seen = -(redis.call('ZSCORE', queue, channel) or 0),
				asked = -(redis.call('ZSCORE', queue, '?' .. channel) or 0),
			}
			processes[channel] = p
		end
		return p
	end

	-- reach returns how an entry is served: 'grant', 'claim', or nil when its process seems to be
	-- gone, and then whether it has not been asked. One that listens but was not heard from may have
	-- too much to look after, or its machine may have vanished: a claim shows which.
	local function reach(channel, claim)
		local p = process(channel)
		if p.asked > p.seen and now - p.asked >= math.max(tonumber(claim), 1000) then
			return nil, false
		end
		local isSeen = p.seen >= now - unseen
		if claim ~= '0' and isSeen then
			return 'claim'
		end
		if not p.listeners then
			local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
			p.listeners = count.err and -1 or tonumber(count[2])
		end
		if p.listeners > 0 then
			return isSeen and 'grant' or 'claim'
		end
		return p.listeners < 0 and isSeen and 'claim' or nil, true
	end

	-- give hands the lock to an entry and reports whether it was able to. The caller's own entry
	-- gets no message.
	local function give(entry, ticket, how, channel, nonce, claim, ttl, owner)
		local life = ttl
		if how == 'claim' then
			life = claim == '0' and '1000' or claim
		elseif how == 'own' then
			life = ownTTL
		end
		if redis.pcall('SET', lock, owner, 'PX', life).err then -- out of memory
			return false
		end
		if how == 'grant' and not tellGrant(channel, nonce, ticket) or
			how == 'claim' and not tell(channel, nonce, ticket, 'claim') then
			return false
		end
		redis.call('ZREM', queue, entry)
		if how == 'grant' then
			redis.call('ZADD', queue, mark, nonce)
		elseif how == 'claim' then
			redis.call('ZADD', queue, mark + 0.5, nonce, -now, '?' .. channel)
			process(channel).probed = true
		end
		keepQueue(tonumber(life))
		if tellHead(life) then
			want(owner, '- -')
		end
		return true
	end

	-- The last holder no longer has the lock. A claim that was not confirmed has lapsed.
	local _, isUnclaimed = unmark()
	local lapsed = expired and isUnclaimed

	local result, isClaim, upTo
	local dropped, told = 0, 0
	local size = 1 -- mostly the first is there
	while not result do
		size = math.min(size, most - dropped)
		local entries = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'WITHSCORES', 'LIMIT', dropped, size)
		size = math.min(16 * size, batch)
		if not entries[1] then
			result = 'empty'
		end
		for i = 1, #entries, 2 do
			local entry, ticket = entries[i], entries[i + 1]
			local channel, nonce, claim, ttl, owner, permits = parse(entry)
			local how, isUnasked
			if channel then
				how = ownTTL and owner == token and 'own'
				if not how then
					how, isUnasked = reach(channel, claim)
				end
			end
			if how and permits and permit > permits then
				result = 'waits'
				break
			end
			if how then
				if upTo then
					redis.call('ZREMRANGEBYSCORE', queue, 1, upTo)
					upTo = nil
				end
				result = give(entry, ticket, how, channel, nonce, claim, ttl, owner) and 'served' or 'kept'
				isClaim = how == 'claim'
				break
			end
			upTo, dropped = ticket, dropped + 1
			if isUnasked and told < batch then -- it may live, and joins again at once
				told = told + 1
				tell(channel, nonce, ticket, 'drop')
			end
		end
		if not result and dropped >= most then
			result = 'more'
		end
	end
	if upTo then
		redis.call('ZREMRANGEBYSCORE', queue, 1, upTo)
	end

	-- Ask the processes next in the queue whether they are alive: if this claim lapses as well, all
	-- that have not answered are dropped.
	if lapsed and result == 'served' then
		local entries = redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, batch)
		for i = 1, #entries, 2 do
			local channel, nonce, claim = parse(entries[i])
			local p = channel and claim ~= '0' and process(channel)
			if p and not p.probed then
				p.probed = true
				if p.asked <= p.seen then
					tell(channel, nonce, entries[i + 1], 'look')
					redis.call('ZADD', queue, -now, '?' .. channel)
				end
			end
		end
	end
	return result, isClaim
end
