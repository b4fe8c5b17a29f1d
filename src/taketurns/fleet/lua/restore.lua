-- SPDX-License-Identifier: Apache-2.0
-- Count in a window what a gateway has granted and the window doesn't hold.
--
-- KEYS: a record of this call, the window.
-- ARGV: now (-1: the server's), period, the `born` that the caller knows (0: none), how many
--   pairs are new; then pairs of age in us and amount: the new ones, then all of its own.
-- Returns the window's `born`, and what it holds.
-- Where the window is the one that the caller knows, it lacks what is new; else all of it.

local now = clock(ARGV[1])
local period, known, new = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local state, found = read(KEYS[2], now)
advance(state, period, now)
if redis.call('SET', KEYS[1], '1', 'PX', 120000, 'NX') then
  local from, till = 5, 4 + 2 * new
  if not found or state[1] ~= known then
    from, till = 5 + 2 * new, #ARGV
  end
  for at = from, till, 2 do
    local age, amount = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    if age < period and amount ~= 0 then
      insert(state, period, state[2] - age, amount)
    end
  end
  write(KEYS[2], state, period)
end
return {state[1], state[3]}
