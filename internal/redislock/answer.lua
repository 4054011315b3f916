-- answer answers a demand. ARGV: a token that is in no entry, the channel, the message
redis.call('ZREM', KEYS[2], '') -- a write, so that a read-only replica refuses
return redis.call('PUBLISH', ARGV[2], ARGV[3])
