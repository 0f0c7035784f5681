-- Rule: release: only the very same grant (token and owner), which then goes to the first waiter that is still subscribed,
-- for the time of a claim, or is deleted. With leave: of this owner whatever there is: its place in the queue and its grant.
-- Told first, then removed from the queue, then set over the held value, deleted if that is refused: nothing that can be
-- refused raises before the lock is gone, so that no missing right keeps a lock or leaves a gap.
-- KEYS lock queue count   ARGV token:owner (leave: owner) client-ms [about, when leaving]
-- Returns 1: it was ours; 2: the same, and whoever waits could not be told for want of a right; 0: it was not ours.
-- The first block is the usual case, before any function is made, which is most of the cost: nobody waits, or who is told is
-- there. What it cannot do is left to the rest, which begins anew; a number is lost by that, and somebody asks in vain.
-- The server sends first what was said last: so the second, who has nothing to do yet, is told before the first.
local L, Q, N, VAL, CLIENT_MS, ABOUT = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
if not ABOUT then
  local waits, try = redis.call('EXISTS', Q) == 1, redis.pcall
  if try('GETRANGE', L, '0', '64') == VAL then
    if not waits then return redis.call('DEL', L) end
    local q, n = try('ZRANGE', Q, '0', '1'), try('INCR', N)
    local h, second, W = q[1], q[2], string.sub(N, 1, -43) .. 'w:'
    if n == 1 then try('DEL', N) end
    if h and type(n) == 'number' and n > 1099511627776 and n < 9007199254740992
        and (not second or try('PUBLISH', W .. string.sub(second, 1, 16), 'n 500 ' .. string.sub(second, 1, 48)) == 1)
        and try('PUBLISH', W .. string.sub(h, 1, 16), 'g ' .. string.sub(h, 1, 48)) == 1 and try('ZREM', Q, h) == 1 then
      n = string.format('%016d:', n) .. string.sub(h, 1, 48) .. CLIENT_MS .. string.sub(h, 49)
      if not try('SET', L, n, 'PX', '500').ok then redis.call('DEL', L) end
      return 1
    end
  end
end
local C, RUN = string.sub(N, 1, -42), string.sub(N, -40)
local function ok(r) return not (type(r) == 'table' and r.err) end
--@include issue.lua
--@include tell.lua
local function head() -- the first in the queue and the second
  local q = redis.pcall('ZRANGE', Q, 0, 1)
  if ok(q) then return q[1], q[2] end
end
local function deputy(ms)
  local h = head()
  while h and tell(h, 'n ' .. ms) == 0 and ok(redis.pcall('ZREM', Q, h)) do h = head() end
end
local v = redis.pcall('GETRANGE', L, '0', '64')
if type(v) == 'table' then -- a key of another type is not ours
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  v = ''
end
local function is_primary() return string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) end
if ABOUT then
  local place = redis.pcall('ZRANK', Q, VAL .. ABOUT)
  redis.pcall('ZREM', Q, VAL .. ABOUT)
  if string.sub(v, 18) ~= VAL then
    if not is_primary() then return redis.error_reply('PAWLREPLICA') end
    if place == 0 then deputy(v ~= '' and redis.call('PTTL', L) or 0) end
    return 0
  end
elseif v ~= VAL then
  if not is_primary() then return redis.error_reply('PAWLREPLICA') end
  return 0
end
local h, second = head()
while h do
  local n = tell(h, 'g')
  if not n or not ok(redis.pcall('ZREM', Q, h)) then redis.call('DEL', L) return 2 end
  if n > 0 then
    local issued, t = pcall(function() return count() or issue() end)
    if not issued or not ok(redis.pcall('SET', L, t .. ':' .. string.sub(h, 1, 48) .. CLIENT_MS .. string.sub(h, 49), 'PX', CLAIM)) then
      break
    end
    if second and tell(second, 'n ' .. CLAIM) == 0 then deputy(CLAIM) end
    return 1
  end
  h, second = head()
end
redis.call('DEL', L)
return 1
