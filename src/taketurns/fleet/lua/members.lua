-- SPDX-License-Identifier: Apache-2.0
-- Say that a gateway is there, and learn of the others.
--
-- KEYS: the mark of this server's data, the gateways. ARGV: now (-1: the server's), the gateway's
--   id, how long it counts as there in us.
-- Returns the mark: another one means that the data is not what it was; then the gateways' ids.

local now = clock(ARGV[1])
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. whole(now), 'NX')
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now))
redis.call('ZADD', KEYS[2], whole(now + tonumber(ARGV[3])), ARGV[2])
redis.call('PEXPIRE', KEYS[2], 60000)
local reply = redis.call('ZRANGE', KEYS[2], 0, -1)
table.insert(reply, 1, redis.call('GET', KEYS[1]))
return reply
