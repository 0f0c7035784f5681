-- Rule: RELEASE: deletes the lock if it is ours, which is always safe: the same as if it had expired. With m only the very
-- grant (number not above m); with a member also leaves the queue. Then the first waiter that still listens is told and
-- leaves the queue: a hint, by which it asks again at once.
-- KEYS lock queue   ARGV v (48, or its first 44: whatever attempt of that owner) m-or-'' channel [member]
-- Returns 1: it was ours; 0: it was not.
local L, Q, V, CHANNEL, MEMBER = KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[4]
local v = redis.pcall('GETRANGE', L, '0', '64')
if type(v) == 'table' then
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  v = '?'
end
local mine = string.sub(v, 18, 17 + #V) == V and (ARGV[2] == '' or tonumber(string.sub(v, 1, 16)) <= tonumber(ARGV[2]))
if mine then redis.call('DEL', L) end
if MEMBER then redis.call('ZREM', Q, MEMBER) end
if mine or (MEMBER and v == '') then
  local what = 'g ' .. (mine and string.sub(v, 18) or string.sub(MEMBER, 1, 48)) .. ' '
  local h = redis.call('ZRANGE', Q, 0, 0)[1]
  while h do
    local n = redis.pcall('PUBLISH', CHANNEL .. string.sub(h, 1, 16), what .. string.sub(h, 1, 48))
    if type(n) ~= 'number' then break end -- may not publish: they look by themselves
    redis.call('ZREM', Q, h)
    h = n == 0 and redis.call('ZRANGE', Q, 0, 0)[1] or nil
  end
end
return mine and 1 or 0
