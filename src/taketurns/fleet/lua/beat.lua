-- One gateway's heartbeat: says it lives, looks after the pool, takes back what the dead held.
--
-- ARGV: time ('' takes the server's), epoch, gateway, us until its heartbeat is missed (0: it
-- leaves), most decisions, and the members whose lists are the keys after the pool's. Returns
-- msgpack: a word, and after `ok`: epoch, time, members, the gateway's own decisions, how
-- selection ended, a summary of the pool, and the name of a gateway of which something was taken back ('': none).

local REAPED_MAX = 200
local DOUBT_US = 1000000

-- A gateway is given up when it was found silent twice, this long apart: the server's clock
-- may have jumped.
local function silent()
  for name, until_us in pairs(S.members) do
    if until_us >= now then
      S.suspects[name] = nil
    elseif not S.suspects[name] then
      S.suspects[name] = now
    elseif now - S.suspects[name] >= DOUBT_US then
      return name
    end
  end
  return nil
end

local function reap(gateway)
  local prefix = gateway .. '|'
  local ids = call('ZRANGE', OWN, '[' .. prefix, '[' .. prefix .. '\255', 'BYLEX',
    'LIMIT', 0, REAPED_MAX)
  for _, member in ipairs(ids) do
    local id = member:sub(#prefix + 1)
    if complete(id, false, true)[1] == 'unknown' then broken('own') end
  end
  if #ids == REAPED_MAX then return end
  S.members[gateway], S.suspects[gateway] = nil, nil
  for _, name in ipairs(call('HKEYS', ENGINES)) do
    if name ~= '' then
      local engine = get_engine(name)
      if engine.seen[gateway] then remove_engine(name, gateway) end
    end
  end
  if outs[gateway] then call('DEL', outs[gateway]) end
end

-- Compares what can be counted at once: a key that has gone, or lost an entry, is noticed.
local function check()
  local standing = 0
  for _, T in ipairs(S.tiers) do standing = standing + T.standing[NEW] + T.standing[WAITING] end
  local held = S.waiting + S.running
  local sizes = {
    {'HLEN', TICKETS, held}, {'ZCARD', OWN, held}, {'HLEN', FLOWS, S.flows},
    {'ZCARD', QUEUE, S.batch and 2 * S.waiting or S.waiting}, {'ZCARD', DEADLINES, S.watched},
    {'HLEN', ENGINES, S.engines}, {'HLEN', BATCHES, S.batches},
  }
  for _, size in ipairs(sizes) do
    if call(size[1], size[2]) ~= size[3] + 1 then broken(size[2]) end
  end
  local entries = call('ZCARD', RING) - 1
  if S.headroom > 0 then standing = 2 * standing end
  if entries < standing or (not S.batch and entries > standing) then broken(RING) end
  if not call('ZSCORE', FREE, '') then broken(FREE) end
  for _, key in ipairs({TENANTS, PASSED, FOUND}) do
    if call('HEXISTS', key, '') == 0 then broken(key) end
  end
  for number = 2, #KEYS do call('PEXPIRE', KEYS[number], KEPT_MS) end
end

return guarded(function()
  me = ARGV[3]
  clock(ARGV[1])
  if not load_state() or format('%.0f', S.epoch) ~= ARGV[2] or not S.members[me] then
    return pack({'join'})
  end
  for number = 6, #ARGV do outs[ARGV[number]] = KEYS[OUTS + number - 5] end
  check()
  local ttl = tonumber(ARGV[4])
  S.members[me] = now + ttl
  S.suspects[me] = nil
  local gone = ttl == 0 and me or silent()
  if gone then reap(gone) end
  local own, ended = advance(tonumber(ARGV[5]))
  save()
  local members = {}
  for name in pairs(S.members) do members[#members + 1] = name end
  return pack({'ok', S.epoch, now, members, own, ended, summary(), gone or ''})
end)
