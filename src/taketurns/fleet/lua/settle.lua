-- SPDX-License-Identifier: Apache-2.0
-- Correct what a request was charged, once; or undo it, whether or not it was charged yet.
--
-- KEYS: the request's record, then a key for each limit, as when it was admitted.
-- ARGV: 'settle' or 'undo', the request's id; then for each limit: 's' or 'p', period, slot,
--   difference. To undo, slot and difference come out of the record.
-- Returns 1 if something was charged.

local undo = ARGV[1] == 'undo'
local recorded = redis.call('GET', KEYS[1])
if undo then
  -- What comes later finds this, and charges nothing.
  redis.call('SET', KEYS[1], 'x', 'PX', 120000)
else
  redis.call('DEL', KEYS[1])
end
local charged = recorded and recorded ~= 'x' and cmsgpack.unpack(recorded)

for number = 1, #KEYS - 1 do
  local key = KEYS[number + 1]
  local at = 2 + (number - 1) * 4
  if ARGV[at + 1] == 'p' then
    -- Also where the record is lost: the gateway may have put it back here.
    redis.call('ZREM', key, ARGV[2])
  elseif charged then
    local period = tonumber(ARGV[at + 2])
    local slot, difference = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    if undo then
      local place = 2 + (number - 1) * 6
      slot, difference = charged[place + 3], -charged[place + 4]
    end
    local state, found = read(key, 0)
    if found and difference ~= 0 and correct(state, period, slot, difference) then
      redis.call('SET', key, cmsgpack.pack(state), 'KEEPTTL')
    end
  end
end
return charged and 1 or 0
