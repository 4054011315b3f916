-- demand asks the owner of the lock to give it up if it only keeps it. It returns how many this server
-- has told, or -1 if the lock is free. ARGV: a token that is in no entry, the channel for the answer
-- and a name for the demand
local lock, queue = KEYS[1], KEYS[2]
--include want
redis.call('ZREM', queue, '') -- a write, so that a read-only replica, which may lag, refuses
local holder = redis.call('GET', lock)
return holder and want(holder, ARGV[2]) or -1
