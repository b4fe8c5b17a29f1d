-- The round robin of a tier. The same, step by step, as core/ring.py: see there why.
--
-- A flow that stands here has an entry `|rank|place|due|seq|tenant` among all, and one
-- with `=GROUP` in front for each group of which it has tickets: so the next flow of a
-- group is found without passing the others by. Where slots are kept, there is one more with
-- `!` in front where the flow has nothing in flight, with `+` where it has.

local function entry_of(flow, group)
  return format('%s|%d|%d|%016.0f|%016.0f|%s', group, flow.rank, flow.place, flow.due,
    flow.seq, flow.tenant)
end

local function add_entry(flow, group)
  call('ZADD', RING, 0, entry_of(flow, group))
end

local function remove_entry(flow, group)
  if call('ZREM', RING, entry_of(flow, group)) == 0 then broken('ring') end
end

local function stands_in_heap(flow)
  return flow.place == NEW or flow.place == WAITING
end

local function kind_of(flow)
  return flow.in_flight > 0 and HOLDER or QUIET
end

local function stand(flow, place, due, seq)
  local T = S.tiers[flow.rank + 1]
  flow.place, flow.due, flow.seq = place, due, seq
  T.standing[place] = T.standing[place] + 1
  add_entry(flow, '')
  if S.headroom > 0 then add_entry(flow, kind_of(flow)) end
  for group in pairs(flow.groups) do add_entry(flow, group) end
end

local function unstand(flow)
  local T = S.tiers[flow.rank + 1]
  T.standing[flow.place] = T.standing[flow.place] - 1
  remove_entry(flow, '')
  if S.headroom > 0 then remove_entry(flow, kind_of(flow)) end
  for group in pairs(flow.groups) do remove_entry(flow, group) end
end

-- Counts one ticket in flight more, or less, wherever the flow stands.
local function count_in_flight(flow, by)
  local before = kind_of(flow)
  flow.in_flight = flow.in_flight + by
  if S.headroom > 0 and stands_in_heap(flow) and kind_of(flow) ~= before then
    remove_entry(flow, before)
    add_entry(flow, kind_of(flow))
  end
end

local function fresh_seq(T)
  T.numbers = T.numbers + 1
  return T.numbers
end

local function due_of(T, flow)
  local need = 1
  if flow.balance < 0 then need = floor(-flow.balance / (S.quantum * flow.weight)) + 1 end
  return max(T.round, flow.round + need)
end

local function repay(T, flow)
  local passed = T.round - 1 - flow.round
  if passed > 0 then
    flow.balance = flow.balance + passed * S.quantum * flow.weight
    flow.round = T.round - 1
  end
  if flow.place ~= WAITING and flow.balance > 0 then flow.balance = 0 end
end

-- The first entry of a class: round and tenant; nil where there is none.
local function top(T, place, group)
  if T.standing[place] == 0 then return nil end
  local prefix = format('%s|%d|%d|', group or '', T.rank, place)
  local found = call('ZRANGE', RING, '[' .. prefix, '[' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, 1)
  if not found[1] then
    if group then return nil end
    broken('ring')
  end
  local from = #prefix
  return tonumber(found[1]:sub(from + 1, from + 16)), found[1]:sub(from + 35)
end

local function next_entry(T, group)
  local waiting, waiting_tenant = top(T, WAITING, group)
  local new, new_tenant = top(T, NEW, group)
  if not waiting then return new, new_tenant end
  if not new then return waiting, waiting_tenant end
  local round_next = max(T.round, min(waiting, new))
  if waiting > round_next then return new, new_tenant end
  if new > round_next or T.last == NEW then return waiting, waiting_tenant end
  return new, new_tenant
end

local function ring_enter(T, flow)
  repay(T, flow)
  T.count = T.count + 1
  local due = due_of(T, flow)
  if due > T.round then
    stand(flow, WAITING, due, fresh_seq(T))
  else
    local first = top(T, WAITING)
    local ready = first and first <= T.round
    stand(flow, NEW, ready and T.round or T.round + 1, fresh_seq(T))
  end
end

local function end_of_turn(T, flow)
  for place, tenant in ipairs(T.turns) do
    if tenant == flow.tenant then
      table.remove(T.turns, place)
      return
    end
  end
  broken('turns')
end

local function ring_out(T, flow)
  flow.place = OUT
  T.count = T.count - 1
  if flow.balance > 0 then flow.balance = 0 end
end

local function ring_leave(T, flow)
  if flow.place == TURN then end_of_turn(T, flow) else unstand(flow) end
  ring_out(T, flow)
end

local function ring_begin(T, group)
  local round, tenant = next_entry(T, group)
  if not round then return nil end
  local flow = need_flow(T.rank, tenant)
  unstand(flow)
  if round > T.round then T.round = round end
  if flow.place == NEW then repay(T, flow) end
  T.last = flow.place
  flow.balance = flow.balance + (T.round - flow.round) * S.quantum * flow.weight
  flow.round = T.round
  flow.turn_left = flow.balance
  flow.place = TURN
  T.turns[#T.turns + 1] = tenant
  return flow
end

local function has_quiet(T)
  if top(T, WAITING, QUIET) or top(T, NEW, QUIET) then return true end
  for _, tenant in ipairs(T.turns) do
    if need_flow(T.rank, tenant).in_flight == 0 then return true end
  end
  return false
end

-- Lets rounds not have passed for the flows that stand here and have something in flight.
local function carry_holders(T, rounds)
  for _, tenant in ipairs(T.turns) do
    local flow = need_flow(T.rank, tenant)
    flow.round = flow.round + rounds
  end
  local prefix = format('%s|%d|', HOLDER, T.rank)
  for _, entry in ipairs(call('ZRANGE', RING, '[' .. prefix, '[' .. prefix .. '\255', 'BYLEX')) do
    local flow = need_flow(T.rank, entry:sub(#prefix + 37))
    unstand(flow)
    flow.round = flow.round + rounds
    stand(flow, flow.place, flow.due + rounds, flow.seq)
  end
end

-- As ring_begin, of the flows that have nothing in flight; an open turn goes on.
local function ring_begin_quiet(T)
  for _, tenant in ipairs(T.turns) do
    local flow = need_flow(T.rank, tenant)
    if flow.in_flight == 0 then return flow end
  end
  local round = next_entry(T, QUIET)
  if not round then return nil end
  if round > T.round then carry_holders(T, round - T.round) end
  return ring_begin(T, QUIET)
end

local function wait_again(T, flow)
  end_of_turn(T, flow)
  stand(flow, WAITING, due_of(T, flow), fresh_seq(T))
end

local function ring_charge(T, flow, cost, goes_on)
  flow.balance = flow.balance - cost
  flow.turn_left = flow.turn_left - cost
  if cost > flow.largest then flow.largest = cost end
  if not goes_on then
    end_of_turn(T, flow)
    ring_out(T, flow)
  elseif flow.turn_left <= 0 or flow.balance <= 0 then
    wait_again(T, flow)
  end
end

local function settled(T, flow)
  local least = -max(flow.largest, S.debt_rounds * S.quantum * flow.weight)
  if flow.balance < least then
    S.forgiven = S.forgiven + least - flow.balance
    flow.balance = least
  end
  if flow.place == TURN then
    if flow.balance <= 0 then wait_again(T, flow) end
    return
  end
  if flow.place ~= WAITING and flow.balance > 0 then flow.balance = 0 end
  if not stands_in_heap(flow) then return end
  local due = due_of(T, flow)
  if flow.place == WAITING then
    if due ~= flow.due then
      unstand(flow)
      stand(flow, WAITING, due, flow.seq)
    end
  elseif due > T.round then
    unstand(flow)
    stand(flow, WAITING, due, fresh_seq(T))
  end
end

local function ring_settle(T, flow, difference, standing)
  if standing > flow.largest then flow.largest = standing end
  if flow.place ~= TURN then repay(T, flow) end
  flow.balance = flow.balance - difference
  settled(T, flow)
end

local function ring_refund(T, flow, charged)
  if flow.place ~= TURN then repay(T, flow) end
  if flow.balance < 0 then
    flow.balance = min(0, flow.balance + charged)
    settled(T, flow)
  end
end

local function ring_weigh(T, flow, weight)
  if flow.place ~= TURN then repay(T, flow) end
  if flow.count > 0 then T.weight = T.weight + weight - flow.weight end
  flow.weight = weight
  settled(T, flow)
end

local function is_fresh(T, flow)
  if flow.place ~= OUT or flow.in_flight > 0 or flow.count > 0 then return false end
  local missed = T.round - 1 - flow.round
  return missed >= 0 and flow.balance + missed * S.quantum * flow.weight >= 0
end

-- Changes the quantum; false where that are too many flows for one script.
local FLOWS_AT_ONCE = 2000
local function ring_resize(quantum)
  if S.flows > FLOWS_AT_ONCE then return false end
  local found = {}
  for _, key in ipairs(call('HKEYS', FLOWS)) do
    if key ~= '' then
      local rank, tenant = key:match('^(%d+)|(.*)$')
      local flow = need_flow(tonumber(rank), tenant)
      found[#found + 1] = flow
      if flow.place ~= TURN then repay(S.tiers[flow.rank + 1], flow) end
    end
  end
  S.quantum = quantum
  table.sort(found, function(one, other)
    if one.seq ~= other.seq then return one.seq < other.seq end
    return one.key < other.key
  end)
  for _, flow in ipairs(found) do settled(S.tiers[flow.rank + 1], flow) end
  return true
end
