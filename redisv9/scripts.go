package redisv9

import (
	"crypto/sha1"
	"encoding/hex"
	"strconv"
)

// script is a script and what a server calls it. The fields are strings, as arguments of a command.
type script struct{ text, hash any }

func newScript(text string) script {
	hash := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(hash[:])}
}

// In every script on locks KEYS[1] is the lock, KEYS[2] its line, which a name that cannot have one lacks,
// and ARGV[1] the caller's token. TTLs are milliseconds.
//
// A script that finds nothing to do says so by a write without effect, so that a read-only replica, which
// may lag behind, refuses instead of answering.
var (
	extendScript = newScript(extend)
	fenceScript  = newScript(fence)
	holdsScript  = newScript(holds)

	handingCounted   = newHanding(true)
	handingUncounted = newHanding(false)
)

// handing are the scripts that hand locks over: for servers whose PUBLISH tells how many processes got a
// message, and for those where it does not.
type handing struct{ wait, release script }

func newHanding(counted bool) *handing {
	between := "\nlocal counted = " + strconv.FormatBool(counted) + handOver
	return &handing{wait: newScript(waitFree + between + wait), release: newScript(releaseAlone + between + release)}
}

// handOver gives the lock to the first in line who is still there, and tells its process; it says whether
// there was one. When it says no, the caller must set or delete the lock, which may hold anything.
//
// The line is a sorted set of entries "<channel> <id> <ttl> <token>", scored 1, 2, 3 …. A message is
// "<id> <seconds> <microseconds>", the time of a grant. A process that gets none is gone, where that can be
// known; elsewhere the lock is its until its ttl ends, and the next one is told that: "<id> <ttl>". Running
// out of memory must not keep the lock from being freed: then those in line find it free when they look.
const handOver = `
local function handOver()
	local now = redis.call('TIME')
	while true do
		local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
		if not head then
			return false
		end
		redis.call('ZREM', KEYS[2], head)
		local channel, id, ttl, token = string.match(head, '^(%S+) (%d+) (%d+) (.*)$')
		if token then
			if redis.pcall('SET', KEYS[1], token, 'PX', ttl).err then
				return false
			end
			local told = redis.pcall('PUBLISH', channel, id .. ' ' .. now[1] .. ' ' .. now[2])
			if type(told) == 'number' and counted and told > 0 then
				return true
			elseif type(told) == 'number' and not counted then
				local after = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
				if after then -- so that it can look when that time is up
					channel, id = string.match(after, '^(%S+) (%d+)')
					redis.pcall('PUBLISH', channel or '', (id or '') .. ' ' .. ttl)
				end
				return true
			end
		end
	end
end
`

// waitFree and wait take the lock when it is its caller's, or is free and nobody is in line: 1. Otherwise,
// without an entry, it is 0; with one they put that at the end of the line, or leave it where it is in line:
// {the holder's remaining time, how many are before it, the time}. A free lock goes to the line first.
const waitFree = `
-- ARGV: token, ttl, entry, the line's own ttl
local free = redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
if free and (not KEYS[2] or redis.call('EXISTS', KEYS[2]) == 0) then
	return 1
end`

const wait = `
if free and not handOver() then
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local entry = ARGV[3]
if redis.call('GET', KEYS[1]) == ARGV[1] then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	if entry then
		redis.call('ZREM', KEYS[2], entry)
	end
	return 1
end
if not entry then
	return 0
end
if not redis.call('ZSCORE', KEYS[2], entry) then
	local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
	redis.call('ZADD', KEYS[2], (last[2] or 0) + 1, entry)
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local now = redis.call('TIME')
return {redis.call('PTTL', KEYS[1]), redis.call('ZRANK', KEYS[2], entry), now[1], now[2]}
`

// releaseAlone and release hand the lock over or delete it, and wake its watchers: 1, or 0 when the token
// does not hold the lock. With an entry they first take that out of the line: 2 if that was all. Who may not
// publish can release all the same.
const releaseAlone = `
-- ARGV: token, entry
local left = 0
if ARGV[2] and KEYS[2] then
	left = redis.call('ZREM', KEYS[2], ARGV[2])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
	if KEYS[2] then
		redis.call('ZREM', KEYS[2], '')
	end
	return left * 2
end
if not KEYS[2] or redis.call('EXISTS', KEYS[2]) == 0 then
	redis.call('DEL', KEYS[1])
	redis.pcall('PUBLISH', KEYS[1], '')
	return 1
end`

const release = `
if not handOver() then
	redis.call('DEL', KEYS[1])
end
redis.pcall('PUBLISH', KEYS[1], '')
return 1
`

// extend replaces the remaining time: 1, or 0 when the token does not hold the lock.
const extend = `
-- ARGV: token, ttl
if redis.call('GET', KEYS[1]) == ARGV[1] then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return 1
end
if KEYS[2] then
	redis.call('ZREM', KEYS[2], '')
end
return 0
`

// fence returns the next number of the counter KEYS[1], or 0 when the token does not hold the lock KEYS[2].
const fence = `
local n = redis.call('INCR', KEYS[1])
if redis.call('GET', KEYS[2]) == ARGV[1] then
	return n
end
return 0
`

// holds says whether the token holds the lock: 1 or 0.
const holds = `
if redis.call('GET', KEYS[1]) == ARGV[1] then
	return 1
end
return 0
`
