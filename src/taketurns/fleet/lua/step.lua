-- Carries out what one gateway asks for, in its order, then selects.
--
-- ARGV: time ('' takes the server's), epoch, gateway, most decisions, events (msgpack), and the
-- members whose lists are the keys after the pool's. Returns msgpack: a word, and after `ok`:
-- epoch, time, an answer for each event, the gateway's own decisions, how selection ended, and
-- a summary of the pool.

local EVENTS = {
  submit = function(e)
    local queued, answer = {}, nil
    for number = 2, #e do
      answer = submit(unpack(e[number]))
      if answer[1] == 'pool' or answer[1] == 'tenant' then
        for _, id in ipairs(queued) do cancel(id, false) end
        answer[4] = e[number][1]
        return answer
      end
      queued[#queued + 1] = e[number][1]
    end
    return answer
  end,
  cancel = function(e) return cancel(e[2], e[3]) end,
  change = function(e) return change(e[2], e[3], e[4]) end,
  settle = function(e) return settle(e[2], e[3]) end,
  finish = function(e) return complete(e[2], e[3], e[4]) end,
  adopt = function(e) return adopt(unpack(e, 2)) end,
  tenants = function(e)
    for number = 2, #e do set_tenant(unpack(e[number])) end
    return {'set'}
  end,
  quantum = function(e)
    S.min_charge = e[3]
    -- Who joins says it again: then nothing is to be done where it's the same.
    if (e[4] or S.quantum ~= e[2]) and not ring_resize(e[2]) then broken('quantum') end
    return {'set'}
  end,
  engine = function(e)
    set_engine(e[2], e[3])
    return {'set'}
  end,
  seek = function(e) return seek(unpack(e, 2)) end,
  window = function(e) return take_window(e[2], e[3], e[4]) end,
  ask = function(e) return ask(e[2]) end,
  find = function(e) return find(unpack(e, 2)) end,
  remove_engine = function(e)
    remove_engine(e[2], me)
    return {'set'}
  end,
}

return guarded(function()
  me = ARGV[3]
  clock(ARGV[1])
  if not load_state() or format('%.0f', S.epoch) ~= ARGV[2] or not S.members[me] then
    return pack({'join'})
  end
  for number = 6, #ARGV do outs[ARGV[number]] = KEYS[OUTS + number - 5] end
  local answers = {}
  for number, event in ipairs(unpacked(ARGV[5])) do
    answers[number] = EVENTS[event[1]](event)
  end
  local own, ended = advance(tonumber(ARGV[4]))
  S.members[me] = now + S.ttl
  save()
  return pack({'ok', S.epoch, now, answers, own, ended, summary()})
end)
