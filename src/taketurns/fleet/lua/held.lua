-- Lists what one gateway holds in the pool, a page at a time, to be compared with what it knows.
--
-- ARGV: time ('' takes the server's), epoch, gateway, id after which to go on, most ids. Returns
-- msgpack: a word, and after `ok`: epoch, then id and `w` (waits) or `r` (runs) in turns.

return guarded(function()
  me = ARGV[3]
  clock(ARGV[1])
  if not load_state() or format('%.0f', S.epoch) ~= ARGV[2] or not S.members[me] then
    return pack({'join'})
  end
  local prefix = me .. '|'
  local found = call('ZRANGE', OWN, '(' .. prefix .. ARGV[4], '(' .. prefix .. '\255', 'BYLEX',
    'LIMIT', 0, ARGV[5])
  local held = {}
  for _, member in ipairs(found) do
    local id = member:sub(#prefix + 1)
    local row = call('HGET', TICKETS, id) or broken('held')
    held[#held + 1] = id
    held[#held + 1] = row:sub(1, 1)
  end
  return pack({'ok', S.epoch, held})
end)
