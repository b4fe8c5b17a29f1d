-- A pool's keys, its state, and the rows that a script reads and writes once.
--
-- All numbers are integers below 2^53. What a script loads it changes in memory
-- and writes at its end, in save(). Each key but the lists holds an entry named ''
-- that never leaves, so that a key keeps its time to live and that one which has
-- gone is noticed. Whatever is found broken ends the script and wipes the pool: its
-- gateways then put in again what they hold.

local STATE, QUEUE, TICKETS, RING, FLOWS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local FREE, ENGINES, DEADLINES, OWN = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local TENANTS, BATCHES, PASSED, IDLE, FOUND = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local OUTS = 14 -- From the key after this on: the list of each member.

local ZSETS = {QUEUE, RING, FREE, DEADLINES, OWN}
local HASHES = {TICKETS, FLOWS, ENGINES, TENANTS, BATCHES, PASSED, FOUND}

local OUT, NEW, WAITING, TURN = 0, 1, 2, 3
local NEVER = 9007199254740991
local KEPT_MS = 3600000
local QUIET, HOLDER = '!', '+' -- See ring.lua.
local LIST_MAX = 10000 -- Most messages that wait for one gateway; more: it's as good as gone.

local call, format = redis.call, string.format
local pack, unpacked = cmsgpack.pack, cmsgpack.unpack
local max, min, floor = math.max, math.min, math.floor

local S          -- The state: see create() in join.lua.
local now        -- Server's time in us; it never goes back.
local me         -- The gateway that calls.
local outs = {}  -- List of each member that the caller knows, by name.
local flows, engines = {}, {}

local function broken(why)
  error({broken = why})
end

local function clock(given)
  if given ~= '' then
    now = tonumber(given)
  else
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
end

local function load_state()
  local row = call('GET', STATE)
  if not row then return false end
  S = unpacked(row)
  now = max(now, S.now)
  S.now = now
  return true
end

-- Flows: a tenant in a tier. See core/flow.py for the fields.

local function get_flow(rank, tenant)
  local key = rank .. '|' .. tenant
  local flow = flows[key]
  if flow ~= nil then return flow or nil end
  local row = call('HGET', FLOWS, key)
  if not row then return nil end
  local r = unpacked(row)
  flow = {
    key = key, rank = rank, tenant = tenant, weight = r[1], cap = r[2], balance = r[3],
    round = r[4], place = r[5], due = r[6], seq = r[7], turn_left = r[8], in_flight = r[9],
    largest = r[10], count = r[11], cost = r[12], listed = r[13], groups = r[14] or {},
  }
  flows[key] = flow
  return flow
end

local function need_flow(rank, tenant)
  return get_flow(rank, tenant) or broken('flow')
end

local function new_flow(rank, tenant)
  local known = call('HGET', TENANTS, tenant)
  local settings = known and unpacked(known) or {1, 0}
  local flow = {
    key = rank .. '|' .. tenant, rank = rank, tenant = tenant, weight = settings[1],
    cap = settings[2], balance = 0, round = S.tiers[rank + 1].round - 1, place = OUT, due = 0,
    seq = 0, turn_left = 0, in_flight = 0, largest = 0, count = 0, cost = 0, listed = 0,
    groups = {},
  }
  flows[flow.key] = flow
  S.flows = S.flows + 1
  return flow
end

local function forget_flow(flow)
  flows[flow.key] = false
  S.flows = S.flows - 1
  call('HDEL', FLOWS, flow.key)
end

local function capped(flow)
  return flow.cap > 0 and flow.in_flight >= flow.cap
end

-- Engines: name -> slots, in flight, order, what slots each gateway sees there, the limit where
-- slots are found (else 0), and in a sticky pool the key of its name.

local function get_engine(name)
  local engine = engines[name]
  if engine ~= nil then return engine or nil end
  local row = call('HGET', ENGINES, name)
  if not row then return nil end
  local r = unpacked(row)
  engine = {name = name, slots = r[1], in_flight = r[2], order = r[3], seen = r[4],
    limit = r[5], high = r[6], low = r[7]}
  engines[name] = engine
  return engine
end

local function save()
  local rows = {}
  for key, flow in pairs(flows) do
    if flow then
      rows[#rows + 1] = key
      rows[#rows + 1] = pack({
        flow.weight, flow.cap, flow.balance, flow.round, flow.place, flow.due, flow.seq,
        flow.turn_left, flow.in_flight, flow.largest, flow.count, flow.cost, flow.listed,
        next(flow.groups) and flow.groups or nil,
      })
    end
  end
  for first = 1, #rows, 2000 do
    call('HSET', FLOWS, unpack(rows, first, min(first + 1999, #rows)))
  end
  for name, engine in pairs(engines) do
    if engine then
      call('HSET', ENGINES, name,
        pack({engine.slots, engine.in_flight, engine.order, engine.seen, engine.limit,
          engine.high, engine.low}))
    end
  end
  call('SET', STATE, pack(S), 'PX', KEPT_MS)
end

local function wipe(why)
  for number = 1, #KEYS do call('DEL', KEYS[number]) end
  return pack({'broken', tostring(why)})
end

-- Runs a script's part; whatever goes wrong in it wipes the pool.
local function guarded(part)
  local fine, answer = pcall(part)
  if fine then return answer end
  if type(answer) == 'table' then answer = answer.broken or answer.err end
  return wipe(answer)
end

local function tell(gateway, message)
  local key = outs[gateway]
  if not key then return end
  call('RPUSH', key, pack({S.epoch, message}))
  call('PEXPIRE', key, KEPT_MS)
end
