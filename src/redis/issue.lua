-- Rule: the next token (token.h). The numbers are kept as "last run-id replid2 since offset", last and since 16 digits,
-- run-id and replid2 40. ADMIT is due if nothing is stored, if another process answers, or if this process was promoted
-- since (replid2 set, and it or its offset is another one); zeros in replid2 with the same run id change nothing: a
-- primary drops its second id by itself when it has had no replica for an hour. A replica never issues.
-- RUN, CLIENT_MS and C are the caller's locals.
local function issue()
  local m, r = redis.call('GET', C), redis.call('INFO', 'replication')
  if not string.find(r, 'role:master', 1, true) then error('PAWLREPLICA') end
  local id, offset = string.match(r, 'master_replid2:(%x+).-second_repl_offset:(%-?%d+)')
  local last, run, oldid, since, oldoffset = 0, nil, nil, nil, nil
  if m then
    last, run, oldid, since, oldoffset = string.match(m, '^(%d+) (%x+) (%x+) (%d+) (%-?%d+)$')
    if not last then error('PAWLNUMBERS') end
  end
  if run ~= RUN or (string.find(id, '[^0]') and (id ~= oldid or offset ~= oldoffset)) then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    if math.abs(now / 1000 - CLIENT_MS) > 86400000 then error('PAWLCLOCK') end
    last = math.max(last + 1048576, now)
    since, run, oldid, oldoffset = string.format('%016.0f', last), RUN, id, offset
  end
  if last + 1 >= 9007199254740992 then error('PAWLEXHAUSTED') end
  last = string.format('%016.0f', last + 1)
  redis.call('SET', C, last .. ' ' .. run .. ' ' .. oldid .. ' ' .. since .. ' ' .. oldoffset)
  return last
end
