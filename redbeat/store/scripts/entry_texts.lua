-- match_text(text, fetched): tell whether a text is still what the caller has read.
-- texts_of(fields): what decisions about an entry rest on: its definition, policy and revision, the first three fields,
-- with NULs between; the definition alone if there are no others.
-- pack_rows(rows): a list of rows as two values, because a client takes as long to read each value of its own: JSON in
-- which a text field (definition, meta, policy, error, message) is true, and these texts, with NULs between. A text with
-- a NUL in it stays in the JSON. No lengths: a client may decode what it reads in any way.
-- revision_of(revision): a revision as the caller knows it: its SHA-1, however long it is, '' for none.
-- sha1_of_meta(meta): what stands in the field meta_sha1 beside a meta of RedBeat's own.
-- sha1hex(text): its SHA-1.
-- is_meta_foreign(meta, meta_sha1): whether somebody else has written the meta.
-- Not scripts of their own, but put in front of those that need them.
-- fetched is the text itself, or '#' and its SHA-1: to send a long one once more would take longer. One that begins with
-- '#' is sent so, too. A program that doesn't know meta_sha1 leaves it as it is, and its meta is told by that. Instead of
-- that field 3.0.0.dev0 wrote a space behind the meta.
-- a fake that takes the server's place may have no SHA-1: where it is of Python, that has one
local sha1hex = redis.sha1hex
  or python and python.eval and python.eval('lambda text: __import__("hashlib").sha1(text).hexdigest().encode()')
  or function(text) return text end

local function match_text(text, fetched)
  if text == fetched then return true end
  return string.sub(fetched, 1, 1) == '#' and '#' .. sha1hex(text) == fetched
end

local text_fields = {'definition', 'meta', 'policy', 'error', 'message'}
local function pack_rows(rows)
  local texts = {}
  for _, row in ipairs(rows) do
    for _, field in ipairs(row and text_fields or {}) do
      local text = row[field]
      if text and not string.find(text, '\0', 1, true) then texts[#texts + 1], row[field] = text, true end
    end
  end
  return #rows > 0 and cjson.encode(rows) or '[]', table.concat(texts, '\0')
end

local function revision_of(revision) return revision and sha1hex(revision) or '' end

local function texts_of(fields)
  if (fields[2] or '') == '' and not fields[3] then return fields[1] or '' end
  return (fields[1] or '') .. '\0' .. (fields[2] or '') .. '\0' .. revision_of(fields[3])
end

-- entries that are saved or run together often have the same meta
local last_meta, last_sha1 = '', ''
local function sha1_of_meta(meta)
  if meta ~= last_meta then
    last_meta, last_sha1 = meta, sha1hex(meta)
  end
  return last_sha1
end

local function is_meta_foreign(meta, meta_sha1)
  if not meta or string.sub(meta, -1) == ' ' then return false end
  return not meta_sha1 or meta_sha1 ~= sha1_of_meta(meta)
end

