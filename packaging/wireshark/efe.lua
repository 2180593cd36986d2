-- Wireshark dissector of EFE, version 1 (docs/efe.md): tshark -X lua_script:efe.lua -r FILE.
-- By default it takes EtherType 0x88b5 and UDP port 61184; both are preferences. `efe.payload` shows packets as DDP.

local efe = Proto("efe", "EFE, packets over Ethernet frames")

local HEADER, STATUS = 56, 48
local kinds = { "Open", "Challenge", "Accept", "Reject", "Packet", "Status", "Abort", "Reset" }
local classes = { [0] = "posted", [1] = "non-posted", [2] = "completion" }

local f = {
    magic = ProtoField.uint16("efe.magic", "Magic", base.HEX),
    version = ProtoField.uint8("efe.version", "Version"),
    kind = ProtoField.uint8("efe.kind", "Kind", base.DEC, kinds),
    checksum = ProtoField.uint32("efe.checksum", "CRC32C", base.HEX),
    checksum_good = ProtoField.bool("efe.checksum.good", "CRC32C is right"),
    token = ProtoField.uint64("efe.token", "Token of the receiver", base.HEX),
    to = ProtoField.uint32("efe.to", "Connection at the receiver"),
    from = ProtoField.uint32("efe.from", "Connection at the sender"),
    length = ProtoField.uint16("efe.length", "Length of the body"),
    answer = ProtoField.bool("efe.flags.answer", "Asks for an answer", 8, nil, 0x01),
    has_echo = ProtoField.bool("efe.flags.echo", "Has an echo", 8, nil, 0x02),
    finished = ProtoField.bool("efe.flags.finished", "Sender's half is closed", 8, nil, 0x04),
    peer_finished = ProtoField.bool("efe.flags.peer_finished", "Receiver's half is known to be closed", 8, nil, 0x08),
    statuses = ProtoField.uint8("efe.statuses", "Number of status blocks"),
    stamp = ProtoField.uint32("efe.stamp", "Stamp (ns)"),
    echo = ProtoField.uint32("efe.echo", "Echo of a stamp (ns)"),
    held = ProtoField.uint32("efe.held", "Time for which it was held (ns)"),
    sequence = ProtoField.uint32("efe.sequence", "Sequence number"),
    class = ProtoField.uint8("efe.class", "Class", base.DEC, classes),
    wanted = ProtoField.uint64("efe.wanted", "Credit that could be used (bytes)"),
    status = ProtoField.none("efe.status", "Status"),
    status_class = ProtoField.uint8("efe.status.class", "Class", base.DEC, classes),
    not_ready = ProtoField.uint16("efe.status.not_ready", "Not ready for (10 µs)"),
    below = ProtoField.uint32("efe.status.below", "All accepted below"),
    granted = ProtoField.uint64("efe.status.granted", "Credit granted (bytes)"),
    acknowledged = ProtoField.bytes("efe.status.acknowledged", "Accepted"),
    received = ProtoField.bytes("efe.status.received", "Received"),
    missing = ProtoField.string("efe.status.missing", "Missing"),
    instance = ProtoField.uint64("efe.handshake.instance", "Instance of the sender", base.HEX),
    own_token = ProtoField.uint64("efe.handshake.token", "Token of the sender", base.HEX),
    max_frame = ProtoField.uint32("efe.handshake.max_frame", "Maximum length of a frame (bytes)"),
    code = ProtoField.uint32("efe.ending.code", "Code"),
    private_length = ProtoField.uint16("efe.private.length", "Length of the private data"),
    private = ProtoField.bytes("efe.private", "Private data"),
    packet = ProtoField.bytes("efe.packet", "Packet"),
}
efe.fields = f

local e = {
    checksum = ProtoExpert.new("efe.checksum.bad", "The CRC32C is wrong: the frame was damaged", expert.group.CHECKSUM, expert.severity.ERROR),
    length = ProtoExpert.new("efe.length.bad", "The frame is shorter than it announces", expert.group.MALFORMED, expert.severity.ERROR),
    value = ProtoExpert.new("efe.value.bad", "A value that version 1 does not define", expert.group.PROTOCOL, expert.severity.WARN),
}
efe.experts = e

efe.prefs.ethertype = Pref.uint("EtherType", 0x88b5, "EtherType of EFE's frames")
efe.prefs.udp_port = Pref.uint("UDP port", 61184, "UDP port of EFE's frames")
efe.prefs.payload = Pref.string("Payload", "", "Name of the dissector for packets, such as iwarp_ddp_rdmap")

-- CRC32C (RFC 3720): reflected, polynomial 0x82f63b78.
local crc_table = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local shifted = bit.rshift(crc, 1)
        crc = bit.band(crc, 1) == 1 and bit.bxor(shifted, 0x82f63b78) or shifted
    end
    crc_table[byte] = crc
end

-- Of the frame with zeros in place of its checksum, bytes 4 to 7.
local function frame_checksum(tvb, length)
    local bytes, crc = tvb(0, length):bytes(), 0xffffffff
    for at = 0, length - 1 do
        local byte = (at >= 4 and at < 8) and 0 or bytes:get_index(at)
        crc = bit.bxor(crc_table[bit.band(bit.bxor(crc, byte), 0xff)], bit.rshift(crc, 8))
    end
    return bit.tohex(bit.bnot(crc))
end

-- Numbers of the packets that are missing between those that a bitmap shows, as ranges.
local function missing_packets(bitmap, below)
    local ranges, from, highest = {}, nil, -1
    local function is_set(at)
        return bit.band(bitmap:get_index(math.floor(at / 8)), bit.lshift(1, at % 8)) ~= 0
    end
    for at = 0, 127 do
        if is_set(at) then highest = at end
    end
    for at = 0, highest do
        if not is_set(at) then
            from = from or at
        elseif from then
            ranges[#ranges + 1] = from == at - 1 and tostring(below + from) or (below + from) .. "-" .. (below + at - 1)
            from = nil
        end
    end
    return table.concat(ranges, ", ")
end

local function add_status(tvb, tree)
    local class, below = tvb(0, 1):uint(), tvb(4, 4):le_uint()
    local block = tree:add(f.status, tvb)
    block:add(f.status_class, tvb(0, 1))
    block:add_le(f.not_ready, tvb(2, 2))
    block:add_le(f.below, tvb(4, 4))
    block:add_le(f.granted, tvb(8, 8))
    block:add(f.acknowledged, tvb(16, 16))
    block:add(f.received, tvb(32, 16))
    local missing = missing_packets(tvb(32, 16):bytes(), below)
    if missing ~= "" then
        block:add(f.missing, tvb(32, 16), missing)
    end
    if not classes[class] then
        block:add_proto_expert_info(e.value)
    end
    block:append_text(string.format(": %s, below %d, granted %s", classes[class] or class, below, tostring(tvb(8, 8):le_uint64())))
    return string.format(" [%s <%d%s]", classes[class] or class, below, missing == "" and "" or ", missing " .. missing)
end

local function add_private(tvb, length_at, data_at, tree)
    local length = tvb(length_at, 2):le_uint()
    tree:add_le(f.private_length, tvb(length_at, 2))
    if data_at + length > tvb:len() then
        tree:add_proto_expert_info(e.length)
    elseif length > 0 then
        tree:add(f.private, tvb(data_at, length))
    end
end

local function add_body(kind, tvb, pinfo, tree, root)
    if kind == "Packet" and tvb:len() > 0 then
        tree:add(f.packet, tvb())
        if efe.prefs.payload ~= "" then
            Dissector.get(efe.prefs.payload):call(tvb, pinfo, root)
        end
    elseif (kind == "Open" or kind == "Challenge" or kind == "Accept") and tvb:len() >= 24 then
        tree:add_le(f.instance, tvb(0, 8))
        tree:add_le(f.own_token, tvb(8, 8))
        tree:add_le(f.max_frame, tvb(16, 4))
        add_private(tvb, 20, 24, tree)
    elseif (kind == "Reject" or kind == "Abort") and tvb:len() >= 8 then
        tree:add_le(f.code, tvb(0, 4))
        add_private(tvb, 4, 8, tree)
    end
end

local function add_header(tvb, tree)
    tree:add(f.magic, tvb(0, 2))
    tree:add(f.version, tvb(2, 1))
    tree:add(f.kind, tvb(3, 1))
    tree:add_le(f.token, tvb(8, 8))
    tree:add_le(f.to, tvb(16, 4))
    tree:add_le(f.from, tvb(20, 4))
    tree:add_le(f.length, tvb(24, 2))
    for _, flag in ipairs({ f.answer, f.has_echo, f.finished, f.peer_finished }) do
        tree:add(flag, tvb(26, 1))
    end
    tree:add(f.statuses, tvb(27, 1))
    tree:add_le(f.stamp, tvb(28, 4))
    if bit.band(tvb(26, 1):uint(), 2) ~= 0 then
        tree:add_le(f.echo, tvb(32, 4))
        tree:add_le(f.held, tvb(36, 4))
    end
    tree:add_le(f.sequence, tvb(40, 4))
    tree:add(f.class, tvb(44, 1))
    tree:add_le(f.wanted, tvb(48, 8))
end

function efe.dissector(tvb, pinfo, root)
    if tvb:len() < HEADER or tvb(0, 2):uint() ~= 0xefe1 or tvb(2, 1):uint() ~= 1 then
        return 0
    end
    pinfo.cols.protocol = "EFE"
    local kind, class = kinds[tvb(3, 1):uint()] or "?", classes[tvb(44, 1):uint()] or "?"
    local statuses, body_length = tvb(27, 1):uint(), tvb(24, 2):le_uint()
    local length = HEADER + statuses * STATUS + body_length
    local tree = root:add(efe, tvb(0, math.min(length, tvb:len())))
    add_header(tvb, tree)
    local info = string.format("%s %d > %d", kind, tvb(20, 4):le_uint(), tvb(16, 4):le_uint())
    if kind == "Packet" then
        info = info .. string.format(" %s %d, %d bytes", class, tvb(40, 4):le_uint(), body_length)
    end
    if kind == "?" or class == "?" or statuses > 3 then
        tree:add_proto_expert_info(e.value)
    elseif length > tvb:len() then
        tree:add_proto_expert_info(e.length)
    else
        local found, computed = bit.tohex(tvb(4, 4):le_uint()), frame_checksum(tvb, length)
        tree:add_le(f.checksum, tvb(4, 4))
        tree:add(f.checksum_good, tvb(4, 4), found == computed):set_generated()
        if found ~= computed then
            tree:add_proto_expert_info(e.checksum)
        end
        for block = 0, statuses - 1 do
            info = info .. add_status(tvb(HEADER + block * STATUS, STATUS), tree)
        end
        if body_length > 0 then
            add_body(kind, tvb(HEADER + statuses * STATUS, body_length):tvb(), pinfo, tree, root)
        end
    end
    pinfo.cols.info = info
    return math.min(length, tvb:len())
end

local registered = {}
local function register()
    local ethertype, udp = DissectorTable.get("ethertype"), DissectorTable.get("udp.port")
    if registered.ethertype then
        ethertype:remove(registered.ethertype, efe)
        udp:remove(registered.udp_port, efe)
    end
    registered = { ethertype = efe.prefs.ethertype, udp_port = efe.prefs.udp_port }
    ethertype:add(registered.ethertype, efe)
    udp:add(registered.udp_port, efe)
end
efe.prefs_changed = register
register()
