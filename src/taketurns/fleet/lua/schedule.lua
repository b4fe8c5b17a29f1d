-- What can happen to a pool's tickets, and the selection: core/scheduler.py, core/filling.py.

-- A running ticket: gateway, rank, tenant, cost, standing charge, engine, its order, batch.
local function running_of(row)
  local r = unpacked(row:sub(2))
  return {
    gateway = r[1], rank = r[2], tenant = r[3], cost = r[4], standing = r[5], engine = r[6],
    order = r[7], batch = r[8],
  }
end

local function write_running(id, r)
  call('HSET', TICKETS, id, 'r' .. pack({
    r.gateway, r.rank, r.tenant, r.cost, r.standing, r.engine, r.order, r.batch,
  }))
end

local function submit(id, tenant, rank, cost, size, priority, wait, group, affinity)
  if call('HEXISTS', TICKETS, id) == 1 then return {'known'} end
  if S.waiting >= S.queue_max then return {'pool', S.queue_max, S.waiting} end
  local T = S.tiers[rank + 1] or broken('tier')
  local flow = get_flow(rank, tenant)
  if not flow then
    flow = new_flow(rank, tenant)
  elseif flow.place == OUT and is_fresh(T, flow) then
    flow.largest = 0
  end
  if flow.count >= S.tenant_queue_max then
    return {'tenant', S.tenant_queue_max, flow.count}
  end
  S.arrivals = S.arrivals + 1
  S.waiting = S.waiting + 1
  local t = {
    id = id, tenant = tenant, rank = rank, cost = cost, size = size, priority = priority,
    deadline = wait and max(0, min(NEVER, now + wait)) or NEVER, arrival = format('%016.0f', S.arrivals),
    group = group, gateway = me, affinity = affinity,
  }
  queue_push(flow, t)
  watch(t)
  call('ZADD', OWN, 0, me .. '|' .. id)
  if flow.place == OUT and not capped(flow) then ring_enter(T, flow) end
  return {'queued', flow.cost}
end

local function withdraw(t)
  local T = S.tiers[t.rank + 1]
  local flow = need_flow(t.rank, t.tenant)
  queue_remove(flow, t)
  unpass(t)
  unwatch(t)
  S.waiting = S.waiting - 1
  call('HDEL', TICKETS, t.id)
  call('ZREM', OWN, t.gateway .. '|' .. t.id)
  if flow.count == 0 then
    place_flow(T, flow)
    if flow.in_flight == 0 then rest(flow) end
  end
end

local function change(id, priority, wait)
  local row = call('HGET', TICKETS, id)
  if not row or row:sub(1, 1) ~= 'w' then return {'unknown'} end
  local t = ticket_of(row:sub(2))
  local flow = need_flow(t.rank, t.tenant)
  local moved = ticket_of(t.member)
  moved.priority = priority
  moved.deadline = wait and max(0, min(NEVER, now + wait)) or NEVER
  if moved.priority ~= t.priority or moved.deadline ~= t.deadline then
    unwatch(t)
    queue_push(flow, moved)
    queue_remove(flow, t)
    watch(moved)
  end
  return {'changed'}
end

local function settle(id, cost)
  local row = call('HGET', TICKETS, id)
  if not row or row:sub(1, 1) ~= 'r' then return {'unknown'} end
  local r = running_of(row)
  local difference = cost - r.standing
  if difference ~= 0 then
    r.standing = cost
    write_running(id, r)
    ring_settle(S.tiers[r.rank + 1], need_flow(r.rank, r.tenant), difference, cost)
  end
  return {'settled'}
end

local function finish(id, row, cost, executed)
  local r = running_of(row)
  local T = S.tiers[r.rank + 1]
  local flow = need_flow(r.rank, r.tenant)
  S.running = S.running - 1
  call('HDEL', TICKETS, id)
  call('ZREM', OWN, r.gateway .. '|' .. id)
  if executed then
    local final = max(cost or r.standing, S.min_charge)
    if final ~= r.standing then ring_settle(T, flow, final - r.standing, final) end
  else
    ring_refund(T, flow, r.standing)
  end
  count_in_flight(flow, -1)
  if flow.place == OUT then
    if flow.count > 0 then
      if not capped(flow) then ring_enter(T, flow) end
    elseif flow.in_flight == 0 then
      rest(flow)
    end
  end
  if r.batch == 0 then
    release(r.rank, r.engine, r.order)
    return
  end
  local found = call('HGET', BATCHES, r.batch)
  if not found then broken('batch') end
  local batch = unpacked(found)
  batch[2] = batch[2] - 1
  if batch[2] == 0 then
    release(batch[1], r.engine, r.order)
    call('HDEL', BATCHES, r.batch)
    S.batches = S.batches - 1
  else
    call('HSET', BATCHES, r.batch, pack(batch))
  end
end

-- Ends a ticket, wherever it is; again is without effect.
local function complete(id, cost, executed)
  local row = call('HGET', TICKETS, id)
  if not row then return {'unknown'} end
  if row:sub(1, 1) == 'w' then
    withdraw(ticket_of(row:sub(2)))
    return {'withdrawn'}
  end
  finish(id, row, cost, executed)
  return {'finished'}
end

-- Takes a waiting ticket out; a running one only where it's said to be of no use any more.
local function cancel(id, also_running)
  local row = call('HGET', TICKETS, id)
  if not row or (row:sub(1, 1) == 'r' and not also_running) then return {'unknown'} end
  return complete(id, false, false)
end

-- Counts a ticket that its gateway runs already as running: after what was known was lost.
local function adopt(id, tenant, rank, cost, standing, name, batch)
  local row = call('HGET', TICKETS, id)
  if row and row:sub(1, 1) == 'r' then return {'known'} end
  if row then withdraw(ticket_of(row:sub(2))) end
  local T = S.tiers[rank + 1] or broken('tier')
  local flow = get_flow(rank, tenant) or new_flow(rank, tenant)
  local engine = get_engine(name)
  local starts = true
  if batch ~= 0 then
    local found = call('HGET', BATCHES, batch)
    starts = not found
    local b = found and unpacked(found) or {rank, 0}
    b[2] = b[2] + 1
    call('HSET', BATCHES, batch, pack(b))
    if starts then S.batches = S.batches + 1 end
  end
  if starts then
    T.held = T.held + 1
    if engine then take(engine) end
  end
  S.running = S.running + 1
  count_in_flight(flow, 1)
  ring_settle(T, flow, standing, standing)
  place_flow(T, flow)
  call('ZADD', OWN, 0, me .. '|' .. id)
  write_running(id, {
    gateway = me, rank = rank, tenant = tenant, cost = cost, standing = standing,
    engine = name, order = engine and engine.order or 0, batch = batch,
  })
  return {'adopted'}
end

local function set_tenant(tenant, weight, cap)
  call('HSET', TENANTS, tenant, pack({weight, cap}))
  for _, T in ipairs(S.tiers) do
    local flow = get_flow(T.rank, tenant)
    if flow then
      if flow.weight ~= weight then ring_weigh(T, flow, weight) end
      flow.cap = cap
      place_flow(T, flow)
    end
  end
end

-- Selection.

local function dispatch(T, flow, t, engine, batch)
  queue_remove(flow, t)
  unwatch(t)
  unpass(t)
  S.waiting = S.waiting - 1
  S.running = S.running + 1
  S.granted = S.granted + t.cost
  count_in_flight(flow, 1)
  ring_charge(T, flow, t.cost, flow.count > 0 and not capped(flow))
  if S.floored then pay_floors(T, t.cost) end
  write_running(t.id, {
    gateway = t.gateway, rank = t.rank, tenant = t.tenant, cost = t.cost, standing = t.cost,
    engine = engine.name, order = engine.order, batch = batch,
  })
end

local function fits(open, size)
  local rules = S.batch
  if open.count == 0 then return true end
  if open.count >= rules.items_max then return false end
  if rules.padded then
    return (open.count + 1) * max(open.longest, size) <= rules.size_max
  end
  return open.size + size <= rules.size_max
end

local function add(open, t)
  open.count = open.count + 1
  open.size = open.size + t.size
  open.longest = max(open.longest, t.size)
  open.ids[open.count] = t.id
end

local function turn_in(T, cursors, group)
  while cursors[T.rank] <= #T.turns do
    local flow = need_flow(T.rank, T.turns[cursors[T.rank]])
    if flow.groups[group] then return flow end
    cursors[T.rank] = cursors[T.rank] + 1
  end
  return ring_begin(T, group)
end

local function fill(open, group, engine, batch)
  local misfits = S.batch.misfits_max
  local cursors, exhausted = {}, {}
  for _, T in ipairs(S.tiers) do cursors[T.rank] = 1 end
  while fits(open, 1) do
    local T = choose(false, exhausted)
    if not T then return end
    local flow = turn_in(T, cursors, group)
    local t = flow and head_of(flow, group)
    if not t then
      exhausted[T.rank] = true
    elseif fits(open, t.size) then
      dispatch(T, flow, t, engine, batch)
      add(open, t)
    else
      misfits = misfits - 1
      if call('HSET', PASSED, t.arrival, '') == 0 or misfits == 0 then return end
      cursors[T.rank] = cursors[T.rank] + 1
    end
  end
end

-- The tier and the flow that the next slot goes to; nil where there is none.
local function select_flow()
  if keeps_the_rest() then
    local T = choose_quiet()
    return T, T and ring_begin_quiet(T)
  end
  local T = choose(true, {})
  if not T then return nil end
  local tenant = T.turns[1]
  return T, tenant and need_flow(T.rank, tenant) or ring_begin(T)
end

-- Fills one free slot. Returns the gateway and the grant; nil where nothing is eligible;
-- false where the ticket's gateway is none that the caller knows.
local function grant()
  local T, flow = select_flow()
  if not T then return nil end
  if not flow then broken('turn') end
  local t = head_of(flow) or broken('head')
  if t.gateway ~= me and not outs[t.gateway] then return false end
  local engine = engine_for(t)
  T.held = T.held + 1
  take(engine)
  if not S.batch then
    dispatch(T, flow, t, engine, 0)
    return t.gateway, {'grant', engine.name, 0, {t.id}}
  end
  S.batches = S.batches + 1
  S.batch_numbers = S.batch_numbers + 1
  local batch = format('%.0f', S.batch_numbers)
  local open = {count = 0, size = 0, longest = 0, ids = {}}
  dispatch(T, flow, t, engine, batch)
  add(open, t)
  fill(open, '=' .. t.group, engine, batch)
  call('HSET', BATCHES, batch, pack({T.rank, open.count}))
  return t.gateway, {'grant', engine.name, batch, open.ids}
end

-- True where what waits is to wait on for a fuller batch: core/linger.py.
local function lingers()
  local rules = S.batch
  if not rules or rules.linger_us == 0 then return false end
  if S.waiting == 0 then S.until_us, S.over = 0, false end
  if S.waiting == 0 or S.over then return false end
  if S.until_us == 0 then S.until_us = now + rules.linger_us end
  if S.waiting >= rules.items_max or S.size >= rules.size_max or now >= S.until_us then
    S.until_us, S.over = 0, true
  end
  return not S.over
end

-- Expires what is due, then grants; at most `steps` in all. Returns the caller's own
-- decisions, and `done`, `more` or `stale`: there is a member that the caller doesn't know.
local function advance(steps)
  local own = {}
  local function decide(gateway, decision)
    if gateway == me then own[#own + 1] = decision else tell(gateway, decision) end
  end
  if S.watched > 0 then
    local due = call('ZRANGE', DEADLINES, '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, steps)
    for _, member in ipairs(due) do
      local row = call('HGET', TICKETS, member:sub(17))
      if not row or row:sub(1, 1) ~= 'w' then broken('deadline') end
      local t = ticket_of(row:sub(2))
      withdraw(t)
      decide(t.gateway, {'expired', t.id})
    end
    steps = steps - #due
    -- Those that have expired go before any grant.
    if steps == 0 and #due > 0 then return own, 'more' end
  end
  if now < S.opens or (steps > 0 and lingers()) then return own, 'done' end
  -- Where floors count, choosing takes note of tiers that have nothing, though it finds nothing.
  while (S.waiting > 0 or not S.plain) and free_engine() do
    if steps <= 0 then return own, 'more' end
    local gateway, decision = grant()
    if gateway == nil then break end
    if gateway == false then return own, 'stale' end
    decide(gateway, decision)
    steps = steps - 1
  end
  if S.waiting == 0 then S.until_us, S.over = 0, false end
  return own, 'done'
end

-- Of the whole pool: tickets that wait and that run, cost granted, and by tier the cost that
-- waits and the weight of those who wait; then how long what waits is to wait on for a fuller batch.
local function summary()
  local tiers = {}
  for number, T in ipairs(S.tiers) do tiers[number] = {T.cost, T.weight} end
  return {S.waiting, S.running, S.granted, tiers, max(0, S.until_us - now)}
end
