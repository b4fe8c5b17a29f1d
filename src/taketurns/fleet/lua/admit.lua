-- SPDX-License-Identifier: Apache-2.0
-- Charge a request to all its limits under one tag, or to none.
--
-- KEYS: the request's record, then a key for each limit.
-- ARGV: now (-1: the server's), how long the record is kept in ms, lease in us, the request's id;
--   then for each limit: 's' (sliding) or 'p' (parallel), period, max, amount, the amount that is
--   taken where that doesn't fit, 1 in shadow mode, the `born` that the caller knows (0: none).
-- Returns {code, ...}: 1 admitted, 0 refused, 2 counts were lost (nothing was done), 3 given up
--   before; then for each limit: 0 fits, 1 doesn't, 2 wouldn't; used before; wait in us
--   (-1: nobody knows); slot; amount; born.

local FIELDS = 7

local recorded = redis.call('GET', KEYS[1])
if recorded == 'x' then
  return {3}
elseif recorded then
  return cmsgpack.unpack(recorded)
end

local now = clock(ARGV[1])
local reply = {1}
local states = {}
local lost = false

for number = 1, #KEYS - 1 do
  local key = KEYS[number + 1]
  local at = 4 + (number - 1) * FIELDS
  local sliding = ARGV[at + 1] == 's'
  local period, max = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local amount, cut = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local shadow, known = ARGV[at + 6] == '1', tonumber(ARGV[at + 7])
  local used, born, state = 0, 0, nil
  if sliding then
    state = read(key, now)
    born = state[1]
    if known ~= 0 and known ~= born then
      lost = true
    end
    advance(state, period, now)
    used = state[3]
  else
    redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
    used = redis.call('ZCARD', key)
  end
  states[number] = state or false
  local fits, wait = 0, 0
  if amount > 0 and used + amount > max then
    amount = cut
    if used + amount > max then
      fits = shadow and 2 or 1
      wait = -1
      if sliding and amount <= max then
        wait = wait_of(state, period, used + amount - max)
      end
      if not shadow then
        reply[1] = 0
      end
    end
  end
  local place = 2 + (number - 1) * 6
  reply[place], reply[place + 1], reply[place + 2] = fits, used, wait
  reply[place + 3], reply[place + 4], reply[place + 5] = 0, amount, born
end

if lost then
  reply[1] = 2
  return reply
elseif reply[1] == 0 then
  return reply
end

for number = 1, #KEYS - 1 do
  local key = KEYS[number + 1]
  local at = 4 + (number - 1) * FIELDS
  local place = 2 + (number - 1) * 6
  if states[number] then
    local period = tonumber(ARGV[at + 2])
    reply[place + 3] = charge(states[number], period, reply[place + 4])
    write(key, states[number], period)
  else
    local lease = tonumber(ARGV[3])
    redis.call('ZADD', key, whole(now + lease), ARGV[4])
    redis.call('PEXPIRE', key, whole(math.ceil(lease / 1000) + 1000))
  end
end
redis.call('SET', KEYS[1], cmsgpack.pack(reply), 'PX', ARGV[2])
return reply
