// The laboratory's scenario in ns-3: senders and builders around one switch, TCP between each sender and each builder,
// and builders that ask for events as Thalweg's do. Compiled and started by `thalweg lab --on ns3` (src/ns3/), which
// says what each argument means and reads the one line of JSON that is printed at the end.
//
//   sender ── link ──▶ switch ── port of a builder (the only queue that drops) ──▶ builder
//
// Written for ns-3.37 (Debian 12) and ns-3.44 (PyPI): nothing that only one of them has is named at compile time.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace ns3;

namespace
{

// What the scheduler of thalweg-core does (credit.rs, builder.rs), as far as it shows here. Keep them equal.
const double SHARE = 0.5;          // φ: the part of the buffer that is filled
const double HASTE = 0.05;         // asking goes no faster than the port's rate and this part of it more, at most
const uint64_t PIECES = 3;         // pieces in the filled part of the buffer
const uint64_t SHORTEST_PIECE = 4; // in segments
const uint64_t LONGEST_PIECE = 64 << 10;
const size_t TURNS = 4; // slots that are asked for by turns

// Sizes on the wire (thalweg-wire): a message, and the header and padding of a record.
const uint32_t MESSAGE = 64;
const uint64_t RECORD = 64;

// A frame has 14 bytes of Ethernet, of which ns-3's point-to-point device knows 2 (PPP). The 12 others are counted in the
// port's queue, and spent on the wire as a gap after each frame.
const uint32_t ETHERNET = 14;
const uint32_t PPP = 2;

const uint16_t BUILDER_TCP_PORT = 9000;
const uint16_t CROSS_TCP_PORT = 9001;
const uint16_t ETHERTYPE_IPV4 = 0x0800;
// One network: hosts number `index` of each kind. A switch does not route.
const uint32_t SENDER_ADDRESS = 0x0a000001;
const uint32_t BUILDER_ADDRESS = 0x0a800001;

struct Parameters
{
    uint32_t senders = 3;
    uint32_t builders = 1;
    uint64_t rate = 1000000000;  // bit/s, of every link
    std::string slow;            // "number:rate,…": senders with another rate
    uint64_t delay = 100000;     // ns, one way
    double loss = 0;             // of packets on their way to the port
    uint64_t buffer = 340000;    // bytes in frames
    uint32_t mtu = 1500;         // bytes in IP packets
    uint64_t mark = 0;           // bytes in the port from which on packets are marked; 0: never
    std::string control = "TcpCubic";
    bool credit = false;
    uint64_t from = 65536;       // payload bytes of the smallest fragment …
    uint64_t to = 65536;         // … and of the largest
    uint32_t together = 1;       // events that share a slot: asked for as one
    uint64_t interval = 0;       // ns from event to event; 0: always more
    uint32_t open = 64;          // slots of each source that a builder may be at; 1: one event at a time
    uint32_t cross = 0;          // other flows to builder 0
    uint64_t socket = 4 << 20;   // bytes in a socket's buffers
    uint64_t warm = 50000000;    // ns that do not count
    uint64_t measured = 1000000000; // ns that count
    uint64_t look = 1051000;     // ns from one entry of the queue's history to the next
    uint32_t seed = 1;
};

Parameters g;
// Whether the warm-up is over. What is counted in pairs is counted in the whole run and in the measured time.
bool g_measuring = false;

struct Count
{
    uint64_t whole = 0;
    uint64_t measured = 0;

    void operator++(int)
    {
        whole++;
        measured += g_measuring;
    }

    void operator+=(const Count& other)
    {
        whole += other.whole;
        measured += other.measured;
    }
};

[[noreturn]] void
Refuse(const std::string& why)
{
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);
}

// A FIFO that holds so many bytes of Ethernet frames, drops what does not fit, and may mark what it lets in.
class Port : public Queue<Packet>
{
  public:
    uint64_t m_most = 0; // bytes; 0: as many as come
    uint64_t m_mark = 0;
    Count m_drops;
    Count m_marked;
    uint64_t m_longest = 0;          // in the measured time
    std::vector<uint64_t> m_history; // the longest between one look and the next

    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("thalweg::Port").SetParent<Queue<Packet>>().AddConstructor<Port>();
        return id;
    }

    bool Enqueue(Ptr<Packet> packet) override
    {
        const uint64_t bytes = m_bytes + Frame(packet);
        if (m_most > 0 && bytes > m_most)
        {
            m_drops++;
            return false;
        }
        if (m_mark > 0 && bytes > m_mark)
        {
            Mark(packet);
        }
        Change(bytes);
        m_waiting.push_back(packet);
        return true;
    }

    Ptr<Packet> Dequeue() override
    {
        if (m_waiting.empty())
        {
            return nullptr;
        }
        Ptr<Packet> packet = m_waiting.front();
        m_waiting.pop_front();
        Change(m_bytes - Frame(packet));
        return packet;
    }

    // Byte-seconds in the measured time so far.
    double Area()
    {
        Change(m_bytes);
        return m_area;
    }

    void Look()
    {
        m_history.push_back(m_lately);
        m_lately = m_bytes;
    }

    Ptr<Packet> Remove() override
    {
        return Dequeue();
    }

    Ptr<const Packet> Peek() const override
    {
        return m_waiting.empty() ? nullptr : m_waiting.front();
    }

  private:
    void Mark(Ptr<Packet> packet)
    {
        PppHeader ppp;
        Ipv4Header ip;
        packet->RemoveHeader(ppp);
        packet->RemoveHeader(ip);
        if (ip.GetEcn() != Ipv4Header::ECN_NotECT)
        {
            ip.SetEcn(Ipv4Header::ECN_CE);
            m_marked++;
        }
        packet->AddHeader(ip);
        packet->AddHeader(ppp);
    }

    static uint64_t Frame(Ptr<Packet> packet)
    {
        return packet->GetSize() - PPP + ETHERNET;
    }

    void Change(uint64_t bytes)
    {
        const Time now = Simulator::Now();
        if (g_measuring)
        {
            m_area += m_bytes * (now - m_changed).GetSeconds();
            m_longest = std::max(m_longest, bytes);
        }
        m_changed = now;
        m_bytes = bytes;
        m_lately = std::max(m_lately, bytes);
    }

    std::deque<Ptr<Packet>> m_waiting;
    uint64_t m_bytes = 0;
    uint64_t m_lately = 0; // the longest since the last look
    Time m_changed;
    double m_area = 0;
};

NS_OBJECT_ENSURE_REGISTERED(Port);

// A bridge: the address says which device. No routing protocol, whose tables are searched line by line.
class Switch
{
  public:
    std::vector<Ptr<NetDevice>> m_senders;
    std::vector<Ptr<NetDevice>> m_builders;

    void Forward(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&, const Address&, NetDevice::PacketType)
    {
        Ipv4Header ip;
        packet->PeekHeader(ip);
        const uint32_t to = ip.GetDestination().Get();
        const bool builder = to >= BUILDER_ADDRESS;
        const auto& devices = builder ? m_builders : m_senders;
        const uint32_t index = to - (builder ? BUILDER_ADDRESS : SENDER_ADDRESS);
        if (index < devices.size())
        {
            devices[index]->Send(packet->Copy(), devices[index]->GetBroadcast(), ETHERTYPE_IPV4);
        }
    }
};

// Retransmissions and timeouts of a socket, told from its traces.
class Losses
{
  public:
    Count m_retransmissions;
    Count m_timeouts;

    void Watch(Ptr<Socket> socket)
    {
        socket->TraceConnectWithoutContext("Tx", MakeCallback(&Losses::Sent, this));
        socket->TraceConnectWithoutContext("RTO", MakeCallback(&Losses::TimeoutIs, this));
    }

  private:
    void Sent(Ptr<const Packet> packet, const TcpHeader& header, Ptr<const TcpSocketBase>)
    {
        if (packet->GetSize() == 0)
        {
            return;
        }
        const SequenceNumber32 first = header.GetSequenceNumber();
        if (m_begun && first < m_next)
        {
            m_retransmissions++;
        }
        else
        {
            m_begun = true;
            m_next = first + packet->GetSize();
        }
    }

    // A timer that ran out is doubled; nothing else doubles it.
    void TimeoutIs(Time before, Time now)
    {
        if (now > before && now == Min(before + before, Seconds(60)))
        {
            m_timeouts++;
        }
    }

    SequenceNumber32 m_next;
    bool m_begun = false;
};

// One TCP connection, with both of its ends.
class Flow
{
  public:
    // A part of a slot that was asked for.
    struct Piece
    {
        uint64_t slot;
        uint64_t bytes;
    };

    uint32_t m_sender = 0;
    Ptr<Socket> m_at_builder;
    // The builder's side.
    std::deque<Piece> m_expected;
    uint32_t m_unsaid = 0; // requests not sent yet
    uint32_t m_unwritten = 0;
    uint64_t m_outstanding = 0;
    bool m_alone = false; // when the only request was made, nothing was on the way
    Time m_asked;
    Losses m_losses; // of the sender

    void Connect(Ptr<Node> node, Ipv4Address builder, uint16_t port)
    {
        m_at_sender = Socket::CreateSocket(node, TcpSocketFactory::GetTypeId());
        m_losses.Watch(m_at_sender);
        m_at_sender->SetCloseCallbacks(MakeCallback(&Flow::Closed, this), MakeCallback(&Flow::Closed, this));
        m_at_sender->SetConnectCallback(MakeCallback(&Flow::Connected, this), MakeCallback(&Flow::Closed, this));
        m_at_sender->SetRecvCallback(MakeCallback(&Flow::Asked, this));
        m_at_sender->SetSendCallback(MakeCallback(&Flow::Room, this));
        m_at_sender->Bind();
        m_at_sender->Connect(InetSocketAddress(builder, port));
    }

    // The builder asks. What is asked for is known at the other end by order: TCP keeps it.
    void Ask(Piece piece)
    {
        m_expected.push_back(piece);
        m_requests.push_back(piece.bytes);
        m_unsaid++;
    }

    void Say()
    {
        m_unwritten += std::exchange(m_unsaid, 0) * MESSAGE;
        SayRest(nullptr, 0);
    }

    void SayRest(Ptr<Socket>, uint32_t)
    {
        const uint32_t bytes = std::min(m_unwritten, m_at_builder->GetTxAvailable());
        if (bytes > 0 && m_at_builder->Send(Create<Packet>(bytes)) == static_cast<int>(bytes))
        {
            m_unwritten -= bytes;
        }
    }

    // Sends as much as there is room for, for ever.
    void Fill()
    {
        m_to_send = UINT64_MAX / 2;
    }

  private:
    void Connected(Ptr<Socket>)
    {
        Pump();
    }

    void Closed(Ptr<Socket>)
    {
        Refuse("a TCP connection was given up: too much was lost in a row");
    }

    void Asked(Ptr<Socket> socket)
    {
        while (Ptr<Packet> packet = socket->Recv())
        {
            m_heard += packet->GetSize();
        }
        for (; m_heard >= MESSAGE; m_heard -= MESSAGE)
        {
            m_to_send += m_requests.front();
            m_requests.pop_front();
        }
        Pump();
    }

    void Room(Ptr<Socket>, uint32_t)
    {
        Pump();
    }

    void Pump()
    {
        while (m_to_send > 0)
        {
            const uint64_t room = m_at_sender->GetTxAvailable();
            const uint32_t bytes = std::min<uint64_t>({m_to_send, room, 65536});
            if (bytes == 0 || m_at_sender->Send(Create<Packet>(bytes)) < 0)
            {
                return;
            }
            m_to_send -= bytes;
        }
    }

    Ptr<Socket> m_at_sender;
    std::deque<uint64_t> m_requests;
    uint64_t m_heard = 0;
    uint64_t m_to_send = 0;
};

// Asks for slots and waits for them. Slot k of every sender holds the fragments of `together` events of this builder.
class Builder
{
  public:
    std::vector<Flow> m_flows; // by sender
    uint32_t m_number = 0;
    Ptr<Port> m_port; // in front of it
    // In the measured time.
    uint64_t m_payload = 0;
    std::vector<int64_t> m_completions; // ns

    void Begin()
    {
        m_began = Simulator::Now();
        m_tokens = Burst();
        m_at = m_began;
        OpenMore();
    }

    void Accepted(Ptr<Socket> socket, const Address& from)
    {
        const uint32_t sender = InetSocketAddress::ConvertFrom(from).GetIpv4().Get() - SENDER_ADDRESS;
        Flow& flow = m_flows.at(sender);
        flow.m_at_builder = socket;
        m_by_socket[PeekPointer(socket)] = &flow;
        socket->SetRecvCallback(MakeCallback(&Builder::Received, this));
        socket->SetSendCallback(MakeCallback(&Flow::SayRest, &flow));
        m_connected++;
    }

    bool Complete() const
    {
        return m_connected == m_flows.size();
    }

  private:
    struct Part
    {
        uint64_t payload;
        uint64_t bytes;   // of the records
        uint64_t left;    // to be asked for
        uint64_t missing; // to arrive
    };

    struct Slot
    {
        Time since; // first mentioned
        size_t missing; // parts
        std::vector<Part> parts;
    };

    // ── what there is to ask for ──

    void OpenMore()
    {
        while (m_open.size() < g.open)
        {
            const uint64_t slot = m_first + m_open.size();
            // Its last event happens then, and the offer of it arrives one delay later.
            const uint64_t event = ((slot + 1) * g.together - 1) * g.builders + m_number;
            const Time since = m_began + NanoSeconds(event * g.interval + (g.interval > 0 ? g.delay : 0));
            if (since > Simulator::Now())
            {
                if (m_waiting.IsExpired())
                {
                    m_waiting = Simulator::Schedule(since - Simulator::Now(), &Builder::OpenMore, this);
                }
                break;
            }
            // Not `since`: a source whose slots are all open lets its device wait.
            m_open.push_back(NewSlot());
        }
        Fetch();
    }

    Slot NewSlot() const
    {
        Slot slot{Simulator::Now(), m_flows.size(), {}};
        slot.parts.reserve(m_flows.size());
        for (size_t sender = 0; sender < m_flows.size(); sender++)
        {
            Part part{0, 0, 0, 0};
            for (uint32_t event = 0; event < g.together; event++)
            {
                const uint64_t payload = g.from == g.to ? g.from : m_sizes->GetInteger(g.from, g.to);
                part.payload += payload;
                part.bytes += RECORD + (payload + RECORD - 1) / RECORD * RECORD;
            }
            part.left = part.missing = part.bytes;
            slot.parts.push_back(part);
        }
        return slot;
    }

    // ── asking ──

    void Fetch()
    {
        while (g.credit ? AskForPiece() : AskForPart())
        {
        }
        for (uint32_t sender : m_to_say)
        {
            m_flows[sender].Say();
        }
        m_to_say.clear();
    }

    // The next part nobody has begun with: the oldest slot first, beginning with a sender that rotates with the slot.
    bool NextPart(uint64_t& slot, uint32_t& sender) const
    {
        const uint64_t senders = m_flows.size();
        slot = m_begun / senders;
        sender = (slot + m_begun) % senders;
        return slot < m_first + m_open.size();
    }

    bool AskForPart()
    {
        uint64_t slot;
        uint32_t sender;
        if (!NextPart(slot, sender))
        {
            return false;
        }
        m_begun++;
        Ask(slot, sender, m_open[slot - m_first].parts[sender].left);
        return true;
    }

    // Begins with a part, as long as few are begun; otherwise those take turns.
    bool AskForPiece()
    {
        uint64_t slot;
        uint32_t sender;
        if (m_turns.size() < TURNS && NextPart(slot, sender) && AskForPieceOf(slot, sender))
        {
            m_begun++;
            return true;
        }
        if (m_turns.empty())
        {
            return false;
        }
        const auto turn = m_turns.front();
        m_turns.pop_front();
        if (AskForPieceOf(turn.first, turn.second))
        {
            return true;
        }
        m_turns.push_front(turn);
        return false;
    }

    bool AskForPieceOf(uint64_t slot, uint32_t sender)
    {
        const uint64_t left = m_open[slot - m_first].parts[sender].left;
        // A rest that is not worth a piece of its own goes with it.
        const uint64_t whole = PieceBytes();
        const uint64_t piece = left <= whole + whole / 2 ? left : whole;
        if ((m_outstanding > 0 && m_outstanding + piece > Window()) || !MayAsk(piece))
        {
            return false;
        }
        m_tokens -= piece;
        Ask(slot, sender, piece);
        if (piece < left)
        {
            m_turns.push_back({slot, sender});
        }
        return true;
    }

    void Ask(uint64_t slot, uint32_t sender, uint64_t bytes)
    {
        Flow& flow = m_flows[sender];
        flow.m_alone = flow.m_outstanding == 0;
        flow.m_asked = Simulator::Now();
        flow.m_outstanding += bytes;
        m_outstanding += bytes;
        m_open[slot - m_first].parts[sender].left -= bytes;
        flow.Ask({slot, bytes});
        m_to_say.insert(sender);
    }

    // ── what may be asked for: W = C·τ + φ·B in payload bytes of TCP, paced by a token bucket ──

    static double BytesPerSecond()
    {
        return g.rate / 8.0 * (g.mtu - 52) / (g.mtu + ETHERNET);
    }

    double RoundTrip() const
    {
        return std::max(1e-9, m_round_trip.IsZero() ? 2e-9 * g.delay : m_round_trip.GetSeconds());
    }

    double Widest() const
    {
        return std::max(BytesPerSecond() * RoundTrip() + SHARE * g.buffer, 2.0 * (g.mtu - 52));
    }

    // Begins with what the buffer takes and grows by what arrives.
    double Start() const
    {
        return std::max(SHARE * g.buffer, 10.0 * (g.mtu - 52));
    }

    double Window() const
    {
        return std::min(Widest(), Start() + m_ramp);
    }

    uint64_t PieceBytes() const
    {
        const uint64_t shortest = SHORTEST_PIECE * (g.mtu - 52);
        return std::clamp<uint64_t>(SHARE * g.buffer / PIECES, shortest, std::max(shortest, LONGEST_PIECE));
    }

    double Burst() const
    {
        return std::max(SHARE / 4 * g.buffer, 1.0 * (g.mtu - 52));
    }

    bool MayAsk(double bytes)
    {
        const double product = BytesPerSecond() * RoundTrip();
        const double fastest = (1 + std::min(HASTE, SHARE / 2 * g.buffer / std::max(1.0, product))) * BytesPerSecond();
        const double pace = Start() + m_ramp < Widest() ? std::min(fastest, Window() / RoundTrip()) : fastest;
        m_tokens = std::min(m_tokens + pace * (Simulator::Now() - m_at).GetSeconds(), Burst());
        m_at = Simulator::Now();
        const double lacks = std::min(bytes, Burst()) - m_tokens;
        if (lacks < 1)
        {
            return true;
        }
        m_pace.Cancel();
        m_pace = Simulator::Schedule(Seconds(lacks / pace) + NanoSeconds(1), &Builder::Fetch, this);
        return false;
    }

    // ── what arrives ──

    void Received(Ptr<Socket> socket)
    {
        Flow& flow = *m_by_socket.at(PeekPointer(socket));
        uint64_t bytes = 0;
        while (Ptr<Packet> packet = socket->Recv())
        {
            bytes += packet->GetSize();
        }
        if (bytes == 0)
        {
            return;
        }
        if (std::exchange(flow.m_alone, false))
        {
            const Time took = Simulator::Now() - flow.m_asked;
            m_round_trip = m_round_trip.IsZero() ? took : Min(m_round_trip, took);
        }
        flow.m_outstanding -= bytes;
        m_outstanding -= bytes;
        m_ramp += bytes;
        while (bytes > 0)
        {
            Flow::Piece& piece = flow.m_expected.front();
            const uint64_t of_it = std::min(piece.bytes, bytes);
            bytes -= of_it;
            piece.bytes -= of_it;
            Arrived(piece.slot, flow.m_sender, of_it);
            if (piece.bytes == 0)
            {
                flow.m_expected.pop_front();
            }
        }
        while (!m_open.empty() && m_open.front().missing == 0)
        {
            m_open.pop_front();
            m_first++;
        }
        OpenMore();
    }

    void Arrived(uint64_t number, uint32_t sender, uint64_t bytes)
    {
        Slot& slot = m_open[number - m_first];
        Part& part = slot.parts[sender];
        part.missing -= bytes;
        if (part.missing > 0)
        {
            return;
        }
        slot.missing--;
        if (g_measuring)
        {
            m_payload += part.payload;
            if (slot.missing == 0)
            {
                m_completions.insert(m_completions.end(), g.together, (Simulator::Now() - slot.since).GetNanoSeconds());
            }
        }
    }

    std::map<const Socket*, Flow*> m_by_socket;
    size_t m_connected = 0;
    Ptr<UniformRandomVariable> m_sizes = CreateObject<UniformRandomVariable>();
    Time m_began;
    std::deque<Slot> m_open; // the oldest first
    uint64_t m_first = 0;    // the number of the oldest
    uint64_t m_begun = 0;    // parts that were begun with, counted over all slots
    std::deque<std::pair<uint64_t, uint32_t>> m_turns;
    std::set<uint32_t> m_to_say;
    EventId m_waiting;
    uint64_t m_outstanding = 0;
    Time m_round_trip;
    double m_tokens = 0;
    double m_ramp = 0;
    Time m_at;
    EventId m_pace;
};

// ── the network ──

// A device of a node, with a queue that holds `most` bytes (0: as many as come: a host's own queue does not drop, TCP small
// queues see to that).
Ptr<PointToPointNetDevice>
AddDevice(Ptr<Node> node, uint64_t rate, uint64_t most)
{
    auto device = CreateObject<PointToPointNetDevice>();
    device->SetAddress(Mac48Address::Allocate());
    device->SetMtu(g.mtu);
    device->SetDataRate(DataRate(rate));
    device->SetInterframeGap(Seconds(8.0 * (ETHERNET - PPP) / rate));
    auto port = CreateObject<Port>();
    port->m_most = most;
    port->m_mark = most > 0 ? g.mark : 0;
    device->SetQueue(port);
    node->AddDevice(device);
    return device;
}

// A host with its link to the switch. Returns the switch's device. All of the delay is in the senders' links: what is on
// its way is not in the port.
Ptr<PointToPointNetDevice>
AddHost(Ptr<Node> host, Ptr<Node> at, uint32_t address, uint64_t rate, uint64_t buffer, uint64_t delay)
{
    auto mine = AddDevice(host, rate, 0);
    auto theirs = AddDevice(at, rate, buffer);
    auto channel = CreateObject<PointToPointChannel>();
    channel->SetAttribute("Delay", TimeValue(NanoSeconds(delay)));
    mine->Attach(channel);
    theirs->Attach(channel);
    auto ip = host->GetObject<Ipv4>();
    const uint32_t interface = ip->AddInterface(mine);
    ip->AddAddress(interface, Ipv4InterfaceAddress(Ipv4Address(address), Ipv4Mask("255.0.0.0")));
    ip->SetUp(interface);
    return theirs;
}

// Where the other flows end.
class Sink
{
  public:
    uint64_t m_payload = 0; // in the measured time

    void Accepted(Ptr<Socket> socket, const Address&)
    {
        socket->SetRecvCallback(MakeCallback(&Sink::Received, this));
    }

  private:
    void Received(Ptr<Socket> socket)
    {
        while (Ptr<Packet> packet = socket->Recv())
        {
            m_payload += g_measuring ? packet->GetSize() : 0;
        }
    }
};

TypeId
Control(const std::string& name)
{
    TypeId id;
    if (!TypeId::LookupByNameFailSafe("ns3::" + name, &id))
    {
        Refuse("this ns-3 has no " + name);
    }
    return id;
}

void
SetDefaults()
{
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(g.mtu - 52));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(g.socket));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(g.socket));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocket::DataRetries", UintegerValue(15));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    // Where ns-3's constants are others than Linux's (tcp_bic.c, tcp_cubic.c, tcp_hybla.c, tcp_scalable.c of 6.1).
    Config::SetDefault("ns3::TcpBic::SmoothPart", UintegerValue(20));
    Config::SetDefault("ns3::TcpCubic::HyStartDelayMax", TimeValue(MilliSeconds(16)));
    Config::SetDefault("ns3::TcpHybla::RRTT", TimeValue(MilliSeconds(25)));
    Config::SetDefault("ns3::TcpScalable::AIFactor", UintegerValue(100));
    RngSeedManager::SetSeed(g.seed);
}

// Until ns-3.38 Westwood+ was a setting of Westwood.
TypeId
ControlOfScenario()
{
    TypeId id;
    if (g.control == "TcpWestwoodPlus" && !TypeId::LookupByNameFailSafe("ns3::TcpWestwoodPlus", &id))
    {
        Config::SetDefault("ns3::TcpWestwood::ProtocolType", StringValue("WestwoodPlus"));
        return Control("TcpWestwood");
    }
    return Control(g.control);
}

// For hosts that are installed from now on.
void
UseControl(TypeId control)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(control));
}

std::vector<uint64_t>
SenderRates()
{
    std::vector<uint64_t> rates(g.senders, g.rate);
    std::istringstream text(g.slow);
    uint32_t number;
    uint64_t rate;
    char colon;
    char comma;
    while (text >> number >> colon >> rate)
    {
        rates.at(number) = rate;
        text >> comma;
    }
    return rates;
}

// ── the measurement ──

using Builders = std::vector<Builder>;

void
Look(const Builders* builders)
{
    for (const auto& builder : *builders)
    {
        builder.m_port->Look();
    }
    Simulator::Schedule(NanoSeconds(g.look), &Look, builders);
}

void
Measure(const Builders* builders)
{
    for (const auto& builder : *builders)
    {
        builder.m_port->Area();
    }
    g_measuring = true;
}

// Looks every millisecond whether everybody is there; then the run begins.
void
BeginWhenComplete(Builders* builders)
{
    const auto complete = [](const Builder& builder) { return builder.Complete(); };
    if (!std::all_of(builders->begin(), builders->end(), complete))
    {
        Simulator::Schedule(MilliSeconds(1), &BeginWhenComplete, builders);
        return;
    }
    for (auto& builder : *builders)
    {
        builder.Begin();
    }
    Simulator::Schedule(NanoSeconds(g.warm), &Measure, builders);
    Simulator::Schedule(NanoSeconds(g.look), &Look, builders);
    Simulator::Stop(NanoSeconds(g.warm + g.measured));
}

std::string
Json(const Count& count)
{
    return "{\"whole\":" + std::to_string(count.whole) + ",\"measured\":" + std::to_string(count.measured) + "}";
}

template <typename Item, typename Say>
std::string
Json(const std::vector<Item>& items, Say say)
{
    std::string text;
    for (const auto& item : items)
    {
        text += (text.empty() ? "[" : ",") + say(item);
    }
    return text.empty() ? "[]" : text + "]";
}

std::string
Json(const Builder& builder)
{
    const auto number = [](auto value) { return std::to_string(value); };
    Port& port = *builder.m_port;
    std::string text = "{\"payload_bytes\":" + number(builder.m_payload);
    text += ",\"completions_ns\":" + Json(builder.m_completions, number);
    text += ",\"drops\":" + Json(port.m_drops) + ",\"marked\":" + Json(port.m_marked);
    text += ",\"queue\":{\"max_bytes\":" + number(port.m_longest);
    text += ",\"mean_bytes\":" + number(port.Area() / (g.measured * 1e-9));
    return text + ",\"history\":" + Json(port.m_history, number) + "}}";
}

// What the flows of one sender lost, to all builders.
std::string
Json(const Builders& builders, uint32_t sender)
{
    Count retransmissions;
    Count timeouts;
    for (const auto& builder : builders)
    {
        const Losses& losses = builder.m_flows[sender].m_losses;
        retransmissions += losses.m_retransmissions;
        timeouts += losses.m_timeouts;
    }
    return "{\"retransmissions\":" + Json(retransmissions) + ",\"timeouts\":" + Json(timeouts) + "}";
}

void
Print(const Builders& builders, const std::vector<Flow>& others, const Sink& sink)
{
    std::vector<uint32_t> senders(g.senders);
    std::iota(senders.begin(), senders.end(), 0);
    Count retransmissions;
    for (const auto& flow : others)
    {
        retransmissions += flow.m_losses.m_retransmissions;
    }
    std::string text = "{\"virtual_seconds\":" + std::to_string(Simulator::Now().GetSeconds());
    text += ",\"senders\":" + Json(senders, [&](uint32_t sender) { return Json(builders, sender); });
    text += ",\"receivers\":" + Json(builders, [](const Builder& builder) { return Json(builder); });
    text += ",\"cross\":{\"payload_bytes\":" + std::to_string(sink.m_payload);
    text += ",\"retransmissions\":" + Json(retransmissions) + "}}";
    std::puts(text.c_str());
}

} // namespace

int
main(int argc, char* argv[])
{
    CommandLine arguments;
    arguments.AddValue("senders", "hosts that send", g.senders);
    arguments.AddValue("builders", "hosts that ask", g.builders);
    arguments.AddValue("rate", "bit/s", g.rate);
    arguments.AddValue("slow", "number:rate,...", g.slow);
    arguments.AddValue("delay", "ns one way", g.delay);
    arguments.AddValue("loss", "fraction of packets", g.loss);
    arguments.AddValue("buffer", "bytes", g.buffer);
    arguments.AddValue("mtu", "bytes", g.mtu);
    arguments.AddValue("mark", "bytes, 0: never", g.mark);
    arguments.AddValue("control", "ns-3's name of it", g.control);
    arguments.AddValue("credit", "whether builders keep to a window", g.credit);
    arguments.AddValue("from", "payload bytes of the smallest fragment", g.from);
    arguments.AddValue("to", "payload bytes of the largest fragment", g.to);
    arguments.AddValue("together", "events in a slot", g.together);
    arguments.AddValue("interval", "ns from event to event, 0: always more", g.interval);
    arguments.AddValue("open", "slots that may be open", g.open);
    arguments.AddValue("cross", "other flows to builder 0", g.cross);
    arguments.AddValue("socket", "bytes in a socket's buffers", g.socket);
    arguments.AddValue("warm", "ns that do not count", g.warm);
    arguments.AddValue("measured", "ns that count", g.measured);
    arguments.AddValue("look", "ns from one entry of the queue's history to the next", g.look);
    arguments.AddValue("seed", "of what is random", g.seed);
    arguments.Parse(argc, argv);
    SetDefaults();
    const TypeId control = ControlOfScenario();

    Switch bridge;
    auto middle = CreateObject<Node>();
    middle->RegisterProtocolHandler(MakeCallback(&Switch::Forward, &bridge), ETHERTYPE_IPV4, nullptr);
    InternetStackHelper internet;
    internet.SetIpv6StackInstall(false);

    auto loss = CreateObject<RateErrorModel>();
    loss->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    loss->SetRate(g.loss);
    auto rates = SenderRates();
    UseControl(control);
    NodeContainer senders;
    senders.Create(g.senders);
    internet.Install(senders);
    // Builders send requests only; what their control does matters with dctcp, which echoes marks packet by packet. (TcpHybla
    // cannot be had at that end at all: its copy for an accepted connection forgets its reference round trip.)
    UseControl(g.control == "TcpDctcp" ? control : Control("TcpCubic"));
    NodeContainer hosts;
    hosts.Create(g.builders);
    internet.Install(hosts);
    if (g.cross > 0)
    {
        // One more host, whose flows are cubic whatever the senders' are.
        UseControl(Control("TcpCubic"));
        NodeContainer other;
        other.Create(1);
        internet.Install(other);
        senders.Add(other);
        rates.push_back(g.rate);
    }
    for (uint32_t index = 0; index < senders.GetN(); index++)
    {
        auto device = AddHost(senders.Get(index), middle, SENDER_ADDRESS + index, rates[index], 0, g.delay);
        device->SetReceiveErrorModel(loss);
        bridge.m_senders.push_back(device);
    }

    Builders builders(g.builders);
    std::vector<Flow> others(g.cross);
    Sink sink;
    for (uint32_t number = 0; number < g.builders; number++)
    {
        auto host = hosts.Get(number);
        const uint32_t address = BUILDER_ADDRESS + number;
        auto device = AddHost(host, middle, address, g.rate, g.buffer, 0);
        bridge.m_builders.push_back(device);
        auto& builder = builders[number];
        builder.m_number = number;
        builder.m_port = DynamicCast<Port>(device->GetQueue());
        builder.m_flows.resize(g.senders);
        auto listener = Socket::CreateSocket(host, TcpSocketFactory::GetTypeId());
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), BUILDER_TCP_PORT));
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                    MakeCallback(&Builder::Accepted, &builder));
        listener->Listen();
        for (uint32_t sender = 0; sender < g.senders; sender++)
        {
            builder.m_flows[sender].m_sender = sender;
            // One after the other, as processes are started: a thousand handshakes at once are no part of the question.
            Simulator::ScheduleWithContext(senders.Get(sender)->GetId(), MicroSeconds(10 * sender), &Flow::Connect,
                                           &builder.m_flows[sender], senders.Get(sender), Ipv4Address(address),
                                           BUILDER_TCP_PORT);
        }
    }
    if (g.cross > 0)
    {
        auto listener = Socket::CreateSocket(hosts.Get(0), TcpSocketFactory::GetTypeId());
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), CROSS_TCP_PORT));
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(), MakeCallback(&Sink::Accepted, &sink));
        listener->Listen();
        for (auto& flow : others)
        {
            flow.Fill();
            Simulator::ScheduleWithContext(senders.Get(g.senders)->GetId(), Seconds(0), &Flow::Connect, &flow,
                                           senders.Get(g.senders), Ipv4Address(BUILDER_ADDRESS), CROSS_TCP_PORT);
        }
    }

    Simulator::Schedule(MilliSeconds(1), &BeginWhenComplete, &builders);
    Simulator::Run();
    Print(builders, others, sink);
    std::fflush(stdout);
    // What the simulator holds goes with the process: taking a thousand hosts apart takes longer than some runs.
    std::_Exit(0);
}
