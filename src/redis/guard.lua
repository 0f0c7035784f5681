-- Rule: one step of a guard (docs/FENCING.md): judges as guard_judge (src/guard/judge.c) does, and writes if it is in order.
-- KEYS record set [data]   ARGV verb lock token seq rule by service jump, then of a put the data, or, with KEYS data of any
-- type, a command and its arguments without the key; of a reset (token: to) the reason.
-- verb: put seal reset. rule: '' whatever the resource has. seq: 0 none. service: '' unknown. jump: 1 accept it.
-- Numbers are decimal texts and compared as such, so no digit is lost. Returns OK (or what the command answered); else
-- {word, now, lock, token, seq, rule, used, written, by, at, service}: word is stale wrong-lock damaged no-token rule seq
-- no-record. The record is a hash; nothing is changed unless OK is returned.
-- The first block is the usual put, of a holder that has written or comes next, before any function is made.
local R, VERB, LOCK, TOKEN, SEQ, RULE, BY = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if VERB == 'put' and SEQ == '0' and RULE == '' and #TOKEN == 16 and not string.find(TOKEN, '%D') and not KEYS[3] then
  local m = redis.call('HMGET', R, 'token', 'lock', 'rule', 'used', 'service')
  local token = m[1]
  if m[2] == LOCK and m[3] == 'ge' and m[4] == '1' and m[5] == ARGV[7] and #token == 16 and token <= TOKEN
      and TOKEN - token <= 86400000000 and TOKEN <= '9007199254740991' then
    local t = redis.call('TIME')
    redis.call('HSET', R, 'data', ARGV[9], 'token', TOKEN, 'by', BY, 'at', string.format('%s%06d', t[1], t[2]), 'written', '1')
    return redis.status_reply('OK')
  end
end
local t = redis.call('TIME')
local now = string.format('%s%06d', t[1], t[2])
local m = redis.call('HMGET', R, 'lock', 'token', 'seq', 'rule', 'used', 'written', 'by', 'at', 'service')
local token, rule = m[2], m[4]
if not token and redis.call('EXISTS', R) == 1 then return redis.error_reply('PAWLRECORD') end
local function no(word)
  local out = {word, now}
  for i = 1, 9 do out[i + 2] = m[i] or '' end
  return out
end
local function above(a, b) return #a > #b or (#a == #b and a > b) end
if VERB == 'reset' then
  if not token then return no('no-record') end
  redis.call('HSET', R, 'token', TOKEN, 'seq', '0', 'used', '0', 'by', BY, 'at', now, 'service', '',
    'reset:' .. redis.call('HINCRBY', R, 'resets', 1), now .. ' ' .. token .. ' ' .. TOKEN .. '\n' .. ARGV[9] .. '\n' .. BY)
  return redis.status_reply('OK')
end
if TOKEN == '' or TOKEN == '0' then return no('no-token') end
if token and m[1] ~= LOCK then return no('wrong-lock') end
if token and RULE ~= '' and RULE ~= rule then return no('rule') end
if not token then rule = RULE ~= '' and RULE or redis.call('GET', KEYS[2]) or 'ge' end
local counts = rule == 'seq' and VERB == 'put'
if counts == (SEQ == '0') or not string.find(SEQ, '^%d+$') then return no('seq') end
if not string.find(TOKEN, '^[1-9]%d*$') or above(TOKEN, '9007199254740991') then return no('damaged') end
if ARGV[8] ~= '1' and tonumber(TOKEN) > math.max(tonumber(token or '0'), tonumber(now)) + 86400000000 then return no('damaged') end
local same = token == TOKEN
if same and VERB == 'put' and ((rule == 'gt' and m[5] == '1') or (counts and not above(SEQ, m[3]))) then return no('stale') end
if token and not same and above(token, TOKEN) then return no('stale') end
local used = VERB == 'put' and '1' or same and m[5] or '0'
local service = ARGV[7] == '' and same and m[9] or ARGV[7]
local seq = (counts or not same) and SEQ or m[3]
local into, data = KEYS[3], ARGV[9]
if VERB == 'put' and not into then
  redis.call('HSET', R, 'data', data, 'lock', LOCK, 'token', TOKEN, 'seq', seq, 'rule', rule, 'used', used, 'written', '1', 'by', BY, 'at', now, 'service', service)
  return redis.status_reply('OK')
end
redis.call('HSET', R, 'lock', LOCK, 'token', TOKEN, 'seq', seq, 'rule', rule, 'used', used, 'written', m[6] or '0', 'by', BY, 'at', now, 'service', service)
if VERB == 'seal' then return redis.status_reply('OK') end
local r = redis.pcall(data, into, unpack(ARGV, 10))
if type(r) == 'table' and r.err then -- the mark as it was
  if token then
    redis.call('HSET', R, 'token', token, 'seq', m[3], 'used', m[5], 'by', m[7], 'at', m[8], 'service', m[9] or '')
  else
    redis.call('DEL', R)
  end
end
return r
