-- Rule: take the lock; the same call claims it after a hand-over, asks again, and (join) enters the queue.
--   free and nobody waits: ours.  Ours already: the lease begins anew.  Free, but others wait: the first of them that is
--   still subscribed gets it for the time of a claim; nobody barges past a live queue.  Else busy.
-- KEYS lock queue count   ARGV owner(48)+client-ms(13)+about ttl [j, k or jk: join, known]
-- The lock's value is token(16) ':' owner(48) ms(13) about, set only where absent, so that clients that use SET NX are
-- excluded and exclude us. Returns the token, or {ttl left, place from 0, value of the holder}; place -1: not in the queue,
-- -2: for want of a right.
-- known: this connection saw the server's identity so lately that it is not looked at again (redis.c). A number that was
-- counted without a look, for a hand-over or so, is looked at when its owner asks again.
-- The first block repeats issue() for the usual case, before any function is made, and arguments are few: both are most of
-- the cost of a lock.
local L, Q, N = KEYS[1], KEYS[2], KEYS[3]
if redis.call('EXISTS', L, Q) == 0 then
  local known = ARGV[3] == 'k' or ARGV[3] == 'jk'
  local r = not known and redis.call('INFO', 'replication')
  if known or (string.find(r, 'role:master', 1, true)
      and string.find(r, 'master_replid2:0000000000000000000000000000000000000000', 1, true)) then
    local n = redis.call('INCR', N)
    if n > 1099511627776 and n < 9007199254740992 then
      n = string.format('%016d', n)
      redis.call('SET', L, n .. ':' .. ARGV[1], 'PX', ARGV[2])
      return n
    end
    if n == 1 then redis.call('DEL', N) end -- nothing to count from: issue() finds out why
  end
end
local call, OWNER, TTL = redis.call, string.sub(ARGV[1], 1, 48), ARGV[2]
local v = call('GET', L)
if v and string.sub(v, 18, 65) == OWNER then -- as issue(old) in the usual case
  local r = call('INFO', 'replication')
  if string.find(r, 'role:master', 1, true)
      and string.find(r, 'master_replid2:0000000000000000000000000000000000000000', 1, true) then
    call('PEXPIRE', L, TTL)
    return string.sub(v, 1, 16)
  end
end
local CLIENT_MS, ME = string.sub(ARGV[1], 49, 61), OWNER .. string.sub(ARGV[1], 62) -- ME: as it stands in the queue
if not v or string.sub(v, 18, 65) == OWNER then
  local C, RUN = string.sub(N, 1, -42), string.sub(N, -40)
  --@include issue.lua
  local function hold(n, member, ttl)
    call('SET', L, n .. ':' .. string.sub(member, 1, 48) .. CLIENT_MS .. string.sub(member, 49), 'PX', ttl)
  end
  if v then
    local old = string.sub(v, 1, 16)
    local n = issue(old)
    if n == old then call('PEXPIRE', L, TTL) else hold(n, ME, TTL) end
    return n
  end
  --@include tell.lua
  local function first() return redis.pcall('ZRANGE', Q, 0, 0)[1] end
  local function drop(h) return type(redis.pcall('ZREM', Q, h)) == 'number' end
  local function deputy(ms) -- tells the first in the queue when to look, and drops those who are gone
    local h = first()
    while h and h ~= ME and tell(h, 'n ' .. ms) == 0 and drop(h) do h = first() end
  end
  local h, n = first(), nil
  while h and h ~= ME do
    n = tell(h, 'g')
    if not n or not drop(h) then h = nil break end -- may not do that: take it and leave the queue alone
    if n > 0 then break end
    h = first()
  end
  if not h or h == ME then
    n = issue()
    hold(n, ME, TTL)
    if h and drop(ME) then deputy(TTL) end
    return n
  end
  hold(count() or issue(), h, CLAIM)
  deputy(CLAIM)
  v = call('GET', L)
end
local place = -1
if ARGV[3] == 'j' or ARGV[3] == 'jk' then -- a repeat keeps its place
  local try, rank = redis.pcall, nil
  rank = try('ZRANK', Q, ME)
  if not rank then -- and nobody enters who could not leave
    local last, left = try('ZRANGE', Q, -1, -1, 'WITHSCORES'), try('ZREM', Q, '')
    rank = last.err and last or type(left) == 'table' and left or try('ZADD', Q, 'NX', (last[2] or 0) + 1, ME)
    if type(rank) == 'number' then rank = call('ZRANK', Q, ME) end
  end
  if type(rank) == 'number' then
    call('PEXPIRE', Q, 120000) -- longer than any waiter looks away
    place = rank
  elseif string.find(rank.err, "can't run this command", 1, true) or string.find(rank.err, 'NOPERM', 1, true) then
    place = -2
  else
    return rank
  end
elseif not string.find(call('INFO', 'replication'), 'role:master', 1, true) then
  error('PAWLREPLICA') -- a replica reads as busy what the primary may have freed
end
return {call('PTTL', L), place, v}
