-- Which engine tickets of one affinity meet: the same as Slots._preferred of core/slots.py.
--
-- Numbers of 64 bits are pairs, high and low, each below 2^32. All is made where it's
-- needed: making functions takes time in each call.

local OVERLOAD_PERCENT = 125

local function affinities()
  local WORD, HALF = 4294967296, 65536

  local function xor(one, other)
    return bit.bxor(one, other) % WORD
  end

  -- The low word of a product of two words.
  local function times_low(one, other)
    return (floor(one / HALF) * other % HALF * HALF + one % HALF * other) % WORD
  end

  local function times(ah, al, bh, bl)
    local a0, a1, b0, b1 = al % HALF, floor(al / HALF), bl % HALF, floor(bl / HALF)
    local middle = a1 * b0 + a0 * b1
    local low = a0 * b0 + middle % HALF * HALF
    local high = floor(low / WORD) + floor(middle / HALF) + a1 * b1
    return (high + times_low(ah, bl) + times_low(al, bh)) % WORD, low % WORD
  end

  -- The number, xor itself shifted to the right.
  local function folded(high, low, by)
    local two = 2 ^ by
    return xor(high, floor(high / two)), xor(low, floor(low / two) + high % two * (WORD / two))
  end

  -- FNV-1a.
  local function key_of(name)
    local high, low = 0xCBF29CE4, 0x84222325
    for place = 1, #name do
      high, low = times(high, xor(low, name:byte(place)), 0x100, 0x1B3)
    end
    return high, low
  end

  -- SplitMix64.
  local function mixed(high, low)
    low = low + 0x7F4A7C15
    high = (high + 0x9E3779B9 + floor(low / WORD)) % WORD
    low = low % WORD
    high, low = folded(high, low, 30)
    high, low = times(high, low, 0xBF58476D, 0x1CE4E5B9)
    high, low = folded(high, low, 27)
    high, low = times(high, low, 0x94D049BB, 0x133111EB)
    return folded(high, low, 31)
  end

  -- Of engines with a free slot, the least used first, the one that an affinity prefers.
  local function preferred(candidates, affinity)
    local best, best_high, best_low = candidates[1], -1, -1
    local from_high, from_low = floor(affinity / WORD), affinity % WORD
    for _, engine in ipairs(candidates) do
      if engine.in_flight * S.total * 100 < OVERLOAD_PERCENT * (S.busy + 1) * engine.slots then
        local high, low = mixed(xor(engine.high, from_high), xor(engine.low, from_low))
        if high > best_high or (high == best_high and (low > best_low
            or (low == best_low and engine.order < best.order))) then
          best, best_high, best_low = engine, high, low
        end
      end
    end
    return best
  end

  return key_of, preferred
end
