-- demand asks the owner of the lock to give it up if it only keeps it. It returns how many this server
-- has told, or -1 if the lock is free. ARGV: a token that holds nothing, the channel for the answer
-- and a name for the demand
local token, entries = ARGV[1], {}
--include locks
--include want
touch()
return values[1] and (queue and want(locks[1], values[1], ARGV[2]) or 0) or -1
