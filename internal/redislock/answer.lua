-- answer answers a demand. ARGV: a token that holds nothing, the channel, the message
redis.call('ZREM', KEYS[1], '') -- a write, so that a read-only replica refuses
return redis.call('PUBLISH', ARGV[2], ARGV[3])
