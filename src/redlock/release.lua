-- Rule: RELEASE: deletes the lock if it is ours, which is always safe: the same as if it had expired. With m only the very
-- grant (number not above m); with a member also leaves the queue. Then it is the turn of the first waiter that still
-- listens: it is told, and for the time of a claim everybody else finds the lock busy. That only ever refuses somebody, so
-- it is as safe as a lost message; instances that disagree about the order differ no longer than that.
-- With a score the owner goes on waiting: it enters the queue again, at its place, so that all instances come to agree who
-- is first.
-- KEYS lock queue turn   ARGV v (48, or its first 44: whatever attempt of that owner) m-or-'' channel [member [score]]
-- Returns 1: it was ours; 0: it was not.
local CLAIM = 500 -- milliseconds
local L, Q, T, V, CHANNEL, MEMBER, SCORE = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local v = redis.pcall('GETRANGE', L, '0', '64')
if type(v) == 'table' then
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  v = '?'
end
local mine = string.sub(v, 18, 17 + #V) == V and (ARGV[2] == '' or tonumber(string.sub(v, 1, 16)) <= tonumber(ARGV[2]))
if mine then redis.call('DEL', L) end
if mine and SCORE then
  redis.call('ZADD', Q, 'NX', SCORE, MEMBER)
  redis.call('PEXPIRE', Q, 120000)
elseif MEMBER and not SCORE then
  redis.call('ZREM', Q, MEMBER)
end
local turn = redis.call('GET', T)
local ours = turn and string.sub(turn, 18, 61) == string.sub(V, 1, 44)
if ours then redis.call('DEL', T) end
if mine or (v == '' and (ours or (MEMBER and not turn))) then
  local what = 'g ' .. (mine and string.sub(v, 18) or string.sub(V .. '0000', 1, 48)) .. ' '
  local h = redis.call('ZRANGE', Q, 0, 0)[1]
  while h do
    local n = redis.pcall('PUBLISH', CHANNEL .. string.sub(h, 1, 16), what .. string.sub(h, 1, 48))
    if type(n) ~= 'number' then break end -- may not publish: they look by themselves
    redis.call('ZREM', Q, h)
    if n > 0 then -- of the form of a lock's value
      redis.call('SET', T, '0000000000000000:' .. string.sub(h, 1, 48) .. '0000000000000' .. string.sub(h, 49), 'PX', CLAIM)
      break
    end
    h = redis.call('ZRANGE', Q, 0, 0)[1]
  end
end
return mine and 1 or 0
