-- Rule: LOCK: where the lock is free, it gets number n = max(counter + 1, hint); the + 1 is essential (models/, b5). The value
-- is n(16) ':' v(48) wall-clock(13) about, so that SET NX excludes us and is excluded. A repeat of what was granted says the
-- same number and what is left. Busy, also if it is the turn of another one who was told: with a member, it enters the queue
-- (release.lua).
-- KEYS lock counter meta queue turn   ARGV v(48)+ms(13)+about ttl hint epoch [member score]
-- Returns 'G' n [left], or {counter, ttl left, place from 0 or -1, value of the holder}, or as admit.lua.
local L, N, META, Q, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local VALUE, TTL, EPOCH, MEMBER = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
--@include admit.lua
local v, ours = redis.call('GET', L), redis.call('MGET', N, T)
local c, turn = ours[1], ours[2]
if not v and turn and string.sub(turn, 18, 61) ~= string.sub(VALUE, 1, 44) then v, L = turn, T end
c = c and math.max(tonumber(c), BASE) or F -- a counter may expire: the floor is above it
if v then
  if string.sub(v, 18, 65) == string.sub(VALUE, 1, 48) then return 'G' .. string.sub(v, 1, 16) .. ' ' .. redis.call('PTTL', L) end
  local place = -1
  if MEMBER then -- a repeat keeps its place
    redis.call('ZADD', Q, 'NX', ARGV[6], MEMBER)
    redis.call('PEXPIRE', Q, 120000) -- longer than any waiter looks away
    place = redis.call('ZRANK', Q, MEMBER)
  end
  return {string.format('%d', c), redis.call('PTTL', L), place, v}
end
local h = tonumber(ARGV[3])
if h > F + 1048576 then -- any hint is safe; one beyond reason would waste the numbers
  if h > now * 1000 + 86400000000 then h = 0 end
end
local n = math.max(c + 1, h)
if n >= 9007199254740800 then error('PAWLEXHAUSTED') end
if n > F then redis.call('SETRANGE', META, 0, string.format('%016d', n + 127)) end -- ahead: one write for many numbers
if tonumber(TTL) > tonumber(string.sub(M, 168, 175)) then redis.call('SETRANGE', META, 167, string.format('%08d', TTL)) end
n = string.format('%016d', n)
redis.call('SET', N, n, 'PX', 86400000)
redis.call('SET', L, n .. ':' .. VALUE, 'PX', TTL)
if turn then redis.call('DEL', T) end
if MEMBER then redis.call('ZREM', Q, MEMBER) end
return 'G' .. n
