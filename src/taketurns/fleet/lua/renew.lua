-- SPDX-License-Identifier: Apache-2.0
-- Let requests of a gateway go on to count in a parallel limit.
--
-- KEYS: the limit. ARGV: now (-1: the server's), lease in us, XX: only those that
-- count still, CH: all; then the requests' ids.

local ends = clock(ARGV[1]) + tonumber(ARGV[2])
for at = 4, #ARGV do
  redis.call('ZADD', KEYS[1], ARGV[3], whole(ends), ARGV[at])
end
redis.call('PEXPIRE', KEYS[1], whole(math.ceil(tonumber(ARGV[2]) / 1000) + 1000))
return 1
