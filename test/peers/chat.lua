-- For wrk: chat requests with GROUPS different system prompts of KB kilobytes; STREAM true or false.
local kb, groups = tonumber(os.getenv("KB") or "4"), tonumber(os.getenv("GROUPS_OF") or "64")
local words = { "cluster", "fault", "schedule", "network", "storage", "cache", "model", "replica", "token", "prefix", "request", "latency", "node", "volume" }
local bodies, turn = {}, 0
math.randomseed(11)
for group = 1, groups do
  local text, size = {}, 0
  while size < kb * 1024 do
    local word = words[math.random(#words)]
    text[#text + 1], size = word, size + #word + 1
  end
  bodies[group] = '{"model":"m","stream":' .. (os.getenv("STREAM") or "true") .. ',"temperature":0,"max_tokens":16,"messages":[{"role":"system","content":"'
    .. table.concat(text, " ") .. '"},{"role":"user","content":"question ' .. group .. '"}]}'
end
request = function()
  turn = turn + 1
  return wrk.format("POST", "/v1/chat/completions", { ["Content-Type"] = "application/json" }, bodies[turn % groups + 1])
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %.0f %.3f %.3f %d\n", summary.requests, summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, e.status + e.connect + e.read + e.write + e.timeout))
end
