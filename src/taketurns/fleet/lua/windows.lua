-- SPDX-License-Identifier: Apache-2.0
-- Sliding windows as taketurns/core/windows.py counts them, integer for integer.
--
-- A window is one string: {born, now, used, slot, amount, last, slot, amount, last, ...}, packed.
-- born: when it was made; another one means that what was counted before is lost.
-- now: the last instant that was looked at; time never goes back.
-- slot: the number of a part since 1970, last: when something was last taken in it.
-- All times are microseconds, below 2^53.

local PARTS = 60

local function whole(number)
  return string.format('%.0f', number)
end

-- The server's clock; a number that isn't negative stands for it in tests.
local function clock(given)
  given = tonumber(given)
  if given >= 0 then
    return given
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function width_of(period)
  return math.ceil(period / PARTS)
end

-- Return the window of a key as it stands; one that can't be read begins anew.
local function read(key, now)
  local raw = redis.call('GET', key)
  if raw then
    local good, state = pcall(cmsgpack.unpack, raw)
    if good and type(state) == 'table' and #state >= 3 and #state % 3 == 0 then
      local numbers = true
      for at = 1, #state do
        numbers = numbers and type(state[at]) == 'number'
      end
      if numbers then
        return state, true
      end
    end
  end
  return {now, now, 0}, false
end

local function write(key, state, period)
  local keep_ms = math.ceil((period + width_of(period)) / 1000) + 1000
  redis.call('SET', key, cmsgpack.pack(state), 'PX', whole(keep_ms))
end

-- Forget what is older than the window.
local function advance(state, period, now)
  if now <= state[2] then
    return
  end
  state[2] = now
  local gone = 0
  while 4 + gone <= #state and state[6 + gone] <= now - period do
    state[3] = state[3] - state[5 + gone]
    gone = gone + 3
  end
  if gone > 0 then
    local size = #state
    for at = 4, size do
      state[at] = state[at + gone]
    end
  end
end

-- Count an amount at the instant of the last advance; return the part's slot.
local function charge(state, period, amount)
  local now, size = state[2], #state
  local width = width_of(period)
  if size > 3 and now < (state[size - 2] + 1) * width then
    state[size - 1] = state[size - 1] + amount
    state[size] = now
  else
    state[size + 1] = math.floor(now / width)
    state[size + 2] = amount
    state[size + 3] = now
  end
  state[3] = state[3] + amount
  return state[#state - 2]
end

-- Count more, or less, in the part that was charged; return false once that is over.
local function correct(state, period, slot, difference)
  for at = 4, #state, 3 do
    if state[at] == slot and state[at + 2] > state[2] - period then
      state[at + 1] = state[at + 1] + difference
      state[3] = state[3] + difference
      return true
    end
  end
  return false
end

-- How long until at least `excess` of what is counted has gone.
local function wait_of(state, period, excess)
  local till = state[2]
  for at = 4, #state, 3 do
    if excess <= 0 then
      break
    end
    excess = excess - state[at + 1]
    till = state[at + 2] + period
  end
  return till - state[2]
end

-- Count what was taken at an instant that is over: in its slot, or in one of its own.
local function insert(state, period, last, amount)
  local slot = math.floor(last / width_of(period))
  local at = #state + 1
  while at > 4 and state[at - 3] > slot do
    at = at - 3
  end
  if at > 4 and state[at - 3] == slot then
    state[at - 2] = state[at - 2] + amount
    state[at - 1] = math.max(state[at - 1], last)
  else
    for from = #state, at, -1 do
      state[from + 3] = state[from]
    end
    state[at], state[at + 1], state[at + 2] = slot, amount, last
  end
  state[3] = state[3] + amount
end
