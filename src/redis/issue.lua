-- Rule: the next token (token.h). N counts them and is named by the process (run id) that they belong to; C says since when
-- and under which identity: "run-id replid2 since offset". ADMIT is due if one of them is missing, if another process
-- answers, or if this process was promoted since (replid2 set, and it or its offset is another one); zeros in replid2 with
-- the same run id change nothing: a primary drops its second id by itself when it had no replica for an hour. A replica
-- never issues. N, C, RUN and CLIENT_MS are the caller's locals.
local function count() -- without a look at the identity; nil: nothing to count from
  local n = redis.call('INCR', N)
  if n > 1099511627776 and n < 9007199254740992 then return string.format('%016d', n) end
  if n == 1 then redis.call('DEL', N) end
end
local function issue(old) -- old: a number from count(), which is kept if it is above all that this identity began with
  local r = redis.call('INFO', 'replication')
  if not string.find(r, 'role:master', 1, true) then error('PAWLREPLICA') end
  if string.find(r, 'master_replid2:0000000000000000000000000000000000000000', 1, true) then -- the usual case
    local n = old or count()
    if n then return n end
  end
  local m = redis.call('GET', C)
  local id, offset = string.match(r, 'master_replid2:(%x+).-second_repl_offset:(%-?%d+)')
  local last, run, oldid, since, oldoffset = 0, nil, nil, nil, nil
  if m then
    run, oldid, since, oldoffset = string.match(m, '^(%x+) (%x+) (%d+) (%-?%d+)$')
    if not run then error('PAWLNUMBERS') end
    last = tonumber(redis.call('GET', C .. ':' .. run) or 0)
  end
  if last < 1099511627776 or run ~= RUN or (string.find(id, '[^0]') and (id ~= oldid or offset ~= oldoffset)) then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    if math.abs(now / 1000 - CLIENT_MS) > 86400000 then error('PAWLCLOCK') end
    last = math.max(math.max(last, since or 0) + 1048576, now)
    if last + 1 >= 9007199254740992 then error('PAWLEXHAUSTED') end
    redis.call('SET', C, RUN .. ' ' .. id .. ' ' .. string.format('%016d', last) .. ' ' .. offset)
    if run and run ~= RUN then redis.call('DEL', C .. ':' .. run) end
  elseif old and tonumber(old) > tonumber(since) then
    return old
  end
  if last + 1 >= 9007199254740992 then error('PAWLEXHAUSTED') end
  last = string.format('%016d', last + 1)
  redis.call('SET', N, last)
  return last
end
