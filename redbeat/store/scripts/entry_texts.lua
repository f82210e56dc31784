-- match_text(text, fetched): tell whether a text is still what the caller has read.
-- texts_of(fields): what decisions about an entry rest on: its definition, policy and revision, the first three fields,
-- with NULs between; the definition alone if there are no others.
-- pack_entry(key, score, fields, other): add an entry to those that are returned. fields are as of read_entry, the eighth is a stored message; other is an
-- object of what few entries have, or nil.
-- packed(): what was added, as two values, because a client takes as long to read each value of its own: JSON, a list of
-- those other objects, each with its entry's place as row; and texts with NULs between, for each entry key, score,
-- definition, meta, policy, error, meta_crc32 and message, '' for what is missing. A text that is empty or has a NUL in it is a
-- member of the other object. No lengths: a client may decode what it reads in any way.
-- revision_of(revision): a revision as the caller knows it: its SHA-1, however long it is, '' for none.
-- sha1hex(text): its SHA-1.
-- Not scripts of their own, but put in front of those that need them.
-- fetched is the text itself, or '#' and its SHA-1: to send a long one once more would take longer. One that begins with
-- '#' is sent so, too.
-- a fake that takes the server's place may have no SHA-1: where it is of Python, that has one
local sha1hex = redis.sha1hex
  or python and python.eval and python.eval('lambda text: __import__("hashlib").sha1(text).hexdigest().encode()')
  or function(text) return text end

local function match_text(text, fetched)
  if text == fetched then return true end
  return string.sub(fetched, 1, 1) == '#' and '#' .. sha1hex(text) == fetched
end

local function revision_of(revision) return revision and sha1hex(revision) or '' end

local function texts_of(fields)
  if (fields[2] or '') == '' and not fields[3] then return fields[1] or '' end
  return (fields[1] or '') .. '\0' .. (fields[2] or '') .. '\0' .. revision_of(fields[3])
end

local find, packed_texts, others, packed_count = string.find, {}, {}, 0
local function pack_entry(key, score, fields, other)
  local definition, meta, policy, error, texts, at = fields[1], fields[2], fields[3], fields[4], packed_texts, 8 * packed_count
  packed_count = packed_count + 1
  texts[at + 1], texts[at + 2], texts[at + 3], texts[at + 4] = key, score, definition or '', meta or ''
  texts[at + 5], texts[at + 6], texts[at + 7], texts[at + 8] = policy or '', error or '', fields[7] or '', fields[8] or ''
  if find(key, '\0', 1, true) or definition and (definition == '' or find(definition, '\0', 1, true))
    or meta and (meta == '' or find(meta, '\0', 1, true)) or policy or error or fields[8] then
    for place, name in ipairs({'key', 'score', 'definition', 'meta', 'policy', 'error', 'meta_crc32', 'message'}) do
      local text = texts[at + place]
      if find(text, '\0', 1, true) or text == '' and fields[place - 2] then
        other = other or {}
        other[name], texts[at + place] = text, ''
      end
    end
  end
  if other then
    other.row, others[#others + 1] = packed_count, other
  end
end

local function packed()
  return #others > 0 and cjson.encode(others) or '[]', table.concat(packed_texts, '\0')
end

