-- Tickets, slots and tiers of a pool. The same as core/scheduler.py and what it uses.
--
-- A waiting ticket is `|rank|tenant|priority|deadline|arrival|cost|size|affinity|group|gateway|id`
-- in QUEUE, where the first of a flow is found by its beginning. In a pool with batches it's
-- there once more with `=GROUP` in front.

local FIELDS = '^|(%d+)|([^|]*)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$'

local function ticket_of(member)
  local rank, tenant, priority, deadline, arrival, cost, size, affinity, group, gateway, id =
    member:match(FIELDS)
  if not rank then broken('ticket') end
  return {
    member = member, rank = tonumber(rank), tenant = tenant, priority = tonumber(priority),
    deadline = tonumber(deadline), arrival = arrival, cost = tonumber(cost),
    size = tonumber(size), affinity = tonumber(affinity), group = group, gateway = gateway, id = id,
  }
end

local function member_of(t)
  return format('|%d|%s|%03d|%016.0f|%s|%.0f|%.0f|%.0f|%s|%s|%s', t.rank, t.tenant, t.priority,
    t.deadline, t.arrival, t.cost, t.size, t.affinity, t.group, t.gateway, t.id)
end

-- The first ticket of a flow, or its first of a group; nil where there is none.
local function head_of(flow, group)
  if flow.count == 0 or (group and not flow.groups[group]) then return nil end
  local prefix = format('%s|%d|%s|', group or '', flow.rank, flow.tenant)
  local found = call('ZRANGE', QUEUE, '[' .. prefix, '[' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, 1)
  if not found[1] then broken('queue') end
  return ticket_of(found[1]:sub(group and #group + 1 or 1))
end

local function queue_push(flow, t)
  t.member = member_of(t)
  local T = S.tiers[t.rank + 1]
  T.cost = T.cost + t.cost
  S.size = S.size + t.size
  if flow.count == 0 then T.weight = T.weight + flow.weight end
  flow.count = flow.count + 1
  flow.cost = flow.cost + t.cost
  call('HSET', TICKETS, t.id, 'w' .. t.member)
  if not S.batch then
    call('ZADD', QUEUE, 0, t.member)
    return
  end
  local group = '=' .. t.group
  call('ZADD', QUEUE, 0, t.member, 0, group .. t.member)
  flow.groups[group] = (flow.groups[group] or 0) + 1
  if flow.groups[group] == 1 and stands_in_heap(flow) then add_entry(flow, group) end
end

local function queue_remove(flow, t)
  local T = S.tiers[t.rank + 1]
  T.cost = T.cost - t.cost
  S.size = S.size - t.size
  flow.count = flow.count - 1
  flow.cost = flow.cost - t.cost
  if flow.count == 0 then T.weight = T.weight - flow.weight end
  if not S.batch then
    if call('ZREM', QUEUE, t.member) == 0 then broken('queue') end
    return
  end
  local group = '=' .. t.group
  if call('ZREM', QUEUE, t.member, group .. t.member) < 2 then broken('queue') end
  flow.groups[group] = flow.groups[group] - 1
  if flow.groups[group] == 0 then
    if stands_in_heap(flow) then remove_entry(flow, group) end
    flow.groups[group] = nil
  end
end

local function watch(t)
  if t.deadline < NEVER then
    call('ZADD', DEADLINES, t.deadline, t.arrival .. t.id)
    S.watched = S.watched + 1
  end
end

local function unwatch(t)
  if t.deadline < NEVER then
    call('ZREM', DEADLINES, t.arrival .. t.id)
    S.watched = S.watched - 1
  end
end

local function unpass(t)
  if S.batch then call('HDEL', PASSED, t.arrival) end
end

-- Slots.

-- An engine has the most slots that a gateway sees there: one that can't reach it says 0. Where
-- slots are found these are what can be reached, and no more than the limit.
local function fit(engine)
  local slots = 0
  for _, seen in pairs(engine.seen) do slots = max(slots, seen) end
  if engine.limit > 0 then slots = min(slots, engine.limit) end
  S.total = S.total + slots - engine.slots
  engine.slots = slots
end

local function list_engine(engine)
  local member = format('%06d%s', engine.order, engine.name)
  if engine.in_flight < engine.slots then
    call('ZADD', FREE, engine.in_flight / engine.slots, member)
  else
    call('ZREM', FREE, member)
  end
end

local function get_finding(name)
  local row = call('HGET', FOUND, '|' .. name)
  return row and unpacked(row)
end

local function put_finding(name, finding)
  call('HSET', FOUND, '|' .. name, pack(finding))
end

-- Takes a gateway from those that seek an engine's slots; where it was the last, that ends.
local function stop_seeking(engine, gateway)
  if engine.limit == 0 then return end
  local finding = get_finding(engine.name) or broken('found')
  finding[4][gateway] = nil
  call('HDEL', FOUND, gateway .. '|' .. engine.name)
  if next(finding[4]) then
    put_finding(engine.name, finding)
  else
    call('HDEL', FOUND, '|' .. engine.name)
    engine.limit = 0
  end
end

-- Says how many slots of an engine the caller sees; with a limit: reaches, where they are found.
local function set_engine(name, slots, limit)
  local engine = get_engine(name)
  if not engine then
    S.engine_numbers = S.engine_numbers + 1
    S.engines = S.engines + 1
    engine = {name = name, slots = 0, in_flight = 0, order = S.engine_numbers, seen = {},
      limit = 0}
    if S.sticky then
      local key_of = affinities()
      engine.high, engine.low = key_of(name)
    end
    engines[name] = engine
  end
  engine.seen[me] = slots
  if limit then engine.limit = limit else stop_seeking(engine, me) end
  fit(engine)
  list_engine(engine)
end

-- Takes back what a gateway sees of an engine; what nobody sees is forgotten.
local function remove_engine(name, gateway)
  local engine = get_engine(name)
  if not engine then return end
  engine.seen[gateway] = nil
  stop_seeking(engine, gateway)
  if next(engine.seen) then
    fit(engine)
    list_engine(engine)
  else
    S.total = S.total - engine.slots
    S.engines = S.engines - 1
    S.busy = S.busy - engine.in_flight
    call('ZREM', FREE, format('%06d%s', engine.order, name))
    call('HDEL', ENGINES, name)
    engines[name] = false
  end
end

-- The engine that takes the next slot: none that the ticket's gateway can't reach or doesn't know,
-- unless these are all; nil where no slot is free.
local function free_engine(gateway)
  local first = nil
  for _, member in ipairs(call('ZRANGE', FREE, 0, gateway and 7 or 0)) do
    if member == '' then break end
    local engine = get_engine(member:sub(7)) or broken('engine')
    first = first or engine
    if not gateway or (engine.seen[gateway] or 0) > 0 then return engine end
  end
  return first
end

-- As free_engine, but with an affinity: of the same engine each time, where that can be.
local function engine_for(t)
  if not S.sticky or t.affinity == 0 then return free_engine(t.gateway) end
  local all, reached = {}, {}
  for _, member in ipairs(call('ZRANGE', FREE, 0, -1)) do
    if member == '' then break end
    local engine = get_engine(member:sub(7)) or broken('engine')
    all[#all + 1] = engine
    if (engine.seen[t.gateway] or 0) > 0 then reached[#reached + 1] = engine end
  end
  local _, preferred = affinities()
  return preferred(reached[1] and reached or all, t.affinity)
end

-- True where no more slots are free than are kept for tenants that hold none.
local function keeps_the_rest()
  if S.headroom == 0 then return false end
  local kept = min(floor((S.headroom * S.total + 99) / 100), S.total - 1)
  if kept <= 0 then return false end
  local free = 0
  for _, member in ipairs(call('ZRANGE', FREE, 0, -1)) do
    if member == '' then break end
    local engine = get_engine(member:sub(7)) or broken('engine')
    free = free + engine.slots - engine.in_flight
    if free > kept then return false end
  end
  return true
end

local function take(engine)
  engine.in_flight = engine.in_flight + 1
  S.busy = S.busy + 1
  list_engine(engine)
end

local function release(rank, name, order)
  S.tiers[rank + 1].held = S.tiers[rank + 1].held - 1
  local engine = get_engine(name)
  if engine and engine.order == order then
    engine.in_flight = engine.in_flight - 1
    S.busy = S.busy - 1
    list_engine(engine)
  end
end

-- Tiers: core/tiers.py.

local function place_flow(T, flow)
  local stands = flow.count > 0 and not capped(flow)
  if stands and flow.place == OUT then
    ring_enter(T, flow)
  elseif not stands and flow.place ~= OUT then
    ring_leave(T, flow)
  end
end

local function rest(flow)
  if flow.listed == 0 then
    flow.listed = 1
    call('RPUSH', IDLE, flow.key)
    call('PEXPIRE', IDLE, KEPT_MS)
  end
  for _ = 1, 2 do
    local key = call('LPOP', IDLE)
    if not key then return end
    local rank, tenant = key:match('^(%d+)|(.*)$')
    local idle = get_flow(tonumber(rank), tenant)
    if idle then
      if is_fresh(S.tiers[idle.rank + 1], idle) then
        forget_flow(idle)
      elseif idle.place == OUT and idle.count == 0 and idle.in_flight == 0 then
        call('RPUSH', IDLE, key)
        call('PEXPIRE', IDLE, KEPT_MS)
      else
        idle.listed = 0
      end
    end
  end
end

local competing = {}

local function may_start(T)
  return T.share == 100 or T.held < max(1, floor(T.share * S.total / 100))
end

-- The tier that the next ticket comes from; `starts`: it takes a slot of its own.
local function choose(starts, without)
  if S.plain then
    for _, T in ipairs(S.tiers) do
      if T.count > 0 and not without[T.rank] then return T end
    end
    return nil
  end
  competing = {}
  local best, floored = nil, nil
  for _, T in ipairs(S.tiers) do
    if T.count > 0 and (not starts or may_start(T)) then
      competing[#competing + 1] = T
      if not without[T.rank] then
        best = best or T
        if T.credit > 0 then floored = floored or T end
      end
    elseif T.credit > 0 then
      T.credit = 0
    end
  end
  return floored or best
end

-- As choose, among the tiers with a tenant that holds no slot.
local function choose_quiet()
  competing = {}
  local floored = nil
  for _, T in ipairs(S.tiers) do
    if has_quiet(T) and may_start(T) then
      competing[#competing + 1] = T
      if T.credit > 0 then floored = floored or T end
    end
  end
  return floored or competing[1]
end

local function pay_floors(T, cost)
  for number = 2, #competing do
    local other = competing[number]
    if other.floor > 0 then
      other.credit = other.credit + cost * other.floor
      if other == T then other.credit = other.credit - 100 * cost end
    end
  end
end
