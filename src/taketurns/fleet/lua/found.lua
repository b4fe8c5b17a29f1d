-- Slots that are found: what gateways saw of an engine is gathered until one of them judges it.
--
-- In FOUND stands, by `|ENGINE`: a version, the limit, what the finder knows (text that only
-- gateways read), when each gateway that seeks told last, and when it was judged last. By
-- `GATEWAY|ENGINE`: windows that are to be judged, each with the time when it came.

local LATE_US = 2000000 -- Who has told nothing for so long isn't waited for.
local WINDOWS_MAX = 4   -- Most windows of one gateway that are kept to be judged.

-- Lets a gateway seek an engine's slots together with others, of which it reaches so many. What
-- it knew counts where nobody knows more.
local function seek(name, reached, version, slots, known)
  local f = get_finding(name) or {-1, 0, '', {}, 0}
  if version > f[1] then f[1], f[2], f[3] = version, slots, known end
  f[4][me] = f[4][me] or now
  put_finding(name, f)
  set_engine(name, reached, f[2])
  return {'told', f[1], f[3]}
end

-- Takes a window; hands all of them out where nobody is waited for any more.
local function take_window(name, version, window)
  local f = get_finding(name)
  if not f or not f[4][me] then return {'unknown'} end
  f[4][me] = now
  local key = me .. '|' .. name
  local row = call('HGET', FOUND, key)
  local mine = row and unpacked(row) or {}
  mine[#mine + 1] = {window, now}
  if #mine > WINDOWS_MAX then table.remove(mine, 1) end
  call('HSET', FOUND, key, pack(mine))
  for _, told in pairs(f[4]) do
    if told <= f[5] and told + LATE_US > now then
      put_finding(name, f)
      return {'told', f[1], f[1] ~= version and f[3] or false}
    end
  end
  local all = {}
  for gateway in pairs(f[4]) do
    local their_key = gateway .. '|' .. name
    local theirs = call('HGET', FOUND, their_key)
    if theirs then
      all[#all + 1] = unpacked(theirs)
      call('HDEL', FOUND, their_key)
    end
  end
  f[5] = now
  put_finding(name, f)
  return {'judge', f[1], f[3], get_engine(name).in_flight, now, all}
end

-- What is known of an engine, with what runs there, and how many slots the others reach.
local function ask(name)
  local f, engine = get_finding(name), get_engine(name)
  if not f or not engine then return {'unknown'} end
  local elsewhere = 0
  for gateway, seen in pairs(engine.seen) do
    if gateway ~= me then elsewhere = max(elsewhere, seen) end
  end
  return {'asked', f[1], f[3], engine.in_flight, elsewhere}
end

-- Sets a limit that was found from the version given; from an older one it counts for nothing.
local function find(name, version, slots, known)
  local f = get_finding(name)
  if not f then return {'unknown'} end
  if f[1] ~= version then return {'stale', f[1], f[3]} end
  f[1], f[2], f[3] = version + 1, slots, known
  put_finding(name, f)
  local engine = get_engine(name) or broken('found')
  engine.limit = slots
  fit(engine)
  list_engine(engine)
  return {'found', f[1], f[3]}
end
