-- isClaim reports whether the lock's remaining time may be the time that the entry was given to
-- claim it, which may be longer than the ttl. If more is left, the token has extended the lock
-- through its key alone, as happens while the slot migrates, and this is a late copy of the
-- request.
local function isClaim()
	local life = 1000
	for _, e in ipairs({entry, former}) do
		local _, _, claim = parse(e)
		life = math.max(life, tonumber(claim or 0))
	end
	return redis.call('PTTL', lock) <= life
end
