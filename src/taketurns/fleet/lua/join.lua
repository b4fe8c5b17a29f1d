-- Takes a gateway in; makes the pool where there is none.
--
-- ARGV: time ('' takes the server's), gateway, us until its heartbeat is missed, whether
-- it was a member before (0 or 1), rules (msgpack). Returns msgpack: `ok`, epoch, time, members,
-- us until anything is granted.

-- A pool that was lost is made anew by who notices first. It grants nothing until the others
-- have had the time of a heartbeat to say what they run.
local OPENS_US = 1500000

local function create(rules)
  local tiers = {}
  local plain, floored = true, false
  for number, tier in ipairs(rules.tiers) do
    tiers[number] = {
      rank = number - 1, floor = tier[1], share = tier[2], round = 0, last = NEW, numbers = 0,
      count = 0, turns = {}, standing = {0, 0}, held = 0, credit = 0,
      cost = 0, weight = 0,
    }
    plain = plain and tier[1] == 0 and tier[2] == 100
    floored = floored or tier[1] > 0
  end
  S = {
    epoch = now, now = now, tiers = tiers, plain = plain, floored = floored, members = {}, suspects = {},
    quantum = rules.quantum, min_charge = rules.min_charge, debt_rounds = rules.debt_rounds,
    tenant_queue_max = rules.tenant_queue_max, queue_max = rules.queue_max, batch = rules.batch,
    headroom = rules.headroom, sticky = rules.sticky, busy = 0,
    arrivals = 0, waiting = 0, running = 0, watched = 0, flows = 0, forgiven = 0, total = 0,
    granted = 0, opens = 0, size = 0, until_us = 0, over = false, ttl = 0, engines = 0, engine_numbers = 0, batches = 0, batch_numbers = 0,
  }
  for number = 2, #KEYS do call('DEL', KEYS[number]) end
  for _, key in ipairs(ZSETS) do call('ZADD', key, (key == FREE or key == DEADLINES) and 'inf' or 0, '') end
  for _, key in ipairs(HASHES) do call('HSET', key, '', '') end
  for number = 2, OUTS do call('PEXPIRE', KEYS[number], KEPT_MS) end
end

return guarded(function()
  me = ARGV[2]
  clock(ARGV[1])
  if not load_state() then create(unpacked(ARGV[5])) end
  S.ttl = tonumber(ARGV[3])
  S.members[me] = now + S.ttl
  S.suspects[me] = nil
  if ARGV[4] == '1' and now < S.epoch + OPENS_US then S.opens = S.epoch + OPENS_US end
  save()
  local members = {}
  for name in pairs(S.members) do members[#members + 1] = name end
  return pack({'ok', S.epoch, now, members, max(0, S.opens - now)})
end)
