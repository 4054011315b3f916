-- release frees the lock if the token holds it, or gives it to the first in the queue, and wakes
-- its watchers. It returns 1, or 0 if the token does not hold the lock. With an entry it first
-- removes the entry from the queue, and returns 2 if it did only that. With a nonce as well, it frees
-- the lock only if the lock was served to that nonce. It adds 10 if there is more to drop from the
-- queue, and 20 if the lock waits to be claimed. ARGV: token, entry, the entry in another form,
-- nonce or ''
local lock, queue, token, entry, former = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local nonce = (ARGV[4] or '') ~= '' and ARGV[4]
local share = 1 -- this release may drop all that a script may
--include release_lock
