/* Everything that is asked of DPDK. Sections of its guides are named by their titles (Programmer's Guide, 22.11).
 *
 * Who calls takes care that `start`, `learn`, `forget`, `open`, `close` and `admit` run one at a time, and that a port
 * is used by one thread at a time.
 */
#define _GNU_SOURCE
/* rte_thread_register, rte_dev_dma_map: as they are since 20.11 and 19.11. */
#define ALLOW_EXPERIMENTAL_API
#include "shim.h"

#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_vfio.h>
#include <rte_version.h>

/* Buffers that a thread keeps to itself (Mempool Library, Local Cache). */
#define CACHE 256
/* Bytes that fit into a buffer for heads: a longer head has room in one for whole frames. */
#define HEAD 256
/* Ethernet header, VLAN tags and the checksum that some devices leave there. */
#define AROUND (14 + 2 * 4 + 4)
/* Buffers for what goes, beyond what the device has descriptors for: what lies in a queue of a driver's own. */
#define BEYOND 2048
/* Where a device is not known yet: the longest that is usual. */
#define UNKNOWN_MTU 9000

/* --- Memory that pieces lie in --- */

/* Memory that one port may read. */
struct memory {
    uint8_t *start;
    size_t length;
    size_t page;
    const uint64_t *addresses; /* Of its pages on the bus; NULL where they are ours. They stay as long as the owner. */
    bool mapped;
    void *owner;
    release release;
    struct memory *next;
};

/* --- Buffers, which live until all of them are back --- */

struct pools {
    struct rte_mempool *heads;  /* For copied heads. */
    struct rte_mempool *pieces; /* Without room of their own: they point into memory that was admitted. */
    struct rte_mempool *frames; /* For whole frames: those that come, and copied ones. */
    struct memory *memories;    /* What pieces lie in: it stays as long. */
    struct pools *next;
};

/* Buffers of a pool that are at hand: to ask for many at once costs hardly more than to ask for one. */
struct stock {
    struct rte_mempool *pool;
    uint32_t count;
    struct rte_mbuf *buffers[BURST];
};

/* Those of ports that are closed, while somebody still has buffers of them. */
static struct pools *lent;

struct port {
    uint16_t id;
    bool virtual;
    bool ring;
    bool memif;
    bool gathers;
    bool started;
    sem_t closed;
    struct rte_device *device;
    struct pools *pools;
    struct stock heads;
    struct stock pieces;
    uint32_t taken;
    uint32_t came;
    struct rte_mbuf *going[BURST];
    struct rte_mbuf *coming[BURST];
    struct frame frames[BURST];
    uint8_t joined[UINT16_MAX];
};

/* --- The environment (EAL) --- */

static log_line tell;

static ssize_t tell_cookie(void *cookie, const char *bytes, size_t length)
{
    (void)cookie;
    tell(rte_log_cur_msg_loglevel(), bytes, length);
    return length;
}

/* Starts the environment, in a thread of the caller's that ends soon: what EAL does to the thread that starts it
 * (affinity, name) is gone with it.
 */
static int start(int count, char **arguments, log_line log)
{
    cookie_io_functions_t functions = {.write = tell_cookie};
    FILE *stream = fopencookie(NULL, "w", functions);
    sigset_t signals;

    if (stream == NULL)
        return -errno;
    tell = log;
    setvbuf(stream, NULL, _IOLBF, 0);
    rte_openlog_stream(stream);

    /* Threads that EAL starts inherit what is blocked: the process's signals are for the process's threads. What an
     * instruction causes cannot be blocked; SIGBUS tells EAL that there are no huge pages left. */
    sigfillset(&signals);
    sigdelset(&signals, SIGBUS);
    sigdelset(&signals, SIGSEGV);
    sigdelset(&signals, SIGFPE);
    sigdelset(&signals, SIGILL);
    sigdelset(&signals, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &signals, NULL);

    if (rte_eal_init(count, arguments) < 0)
        return -rte_errno;
    /* EAL makes it whether or not it is going to put something there (eal_parse_args, lib/eal/linux/eal.c). */
    rmdir(rte_eal_get_runtime_dir());
    return 0;
}

/* Makes the calling thread known, so that it has caches of its own (Environment Abstraction Layer, non-EAL pthread
 * support). 0 where it is.
 */
static int enter(void)
{
    if (rte_lcore_id() != LCORE_ID_ANY)
        return 0;
    return rte_thread_register() == 0 ? 0 : -rte_errno;
}

static void leave(void)
{
    rte_thread_unregister();
}

static uint32_t lcore(void)
{
    return rte_lcore_id();
}

/* The VFIO container that all devices share which DPDK has opened. -1: there is none. */
static int container(void)
{
    return rte_vfio_is_enabled("vfio_pci") ? rte_vfio_get_container_fd() : -1;
}

/* `addresses`: of each page, where these are not ours. */
static int learn(void *start, size_t length, size_t page, uint64_t *addresses)
{
    unsigned int pages = addresses == NULL ? 0 : length / page;

    return rte_extmem_register(start, length, addresses, pages, page) == 0 ? 0 : -rte_errno;
}

static int forget(void *start, size_t length)
{
    return rte_extmem_unregister(start, length) == 0 ? 0 : -rte_errno;
}

/* --- A port --- */

static void free_pools(struct pools *pools)
{
    struct memory *memory, *next;

    rte_mempool_free(pools->heads);
    rte_mempool_free(pools->pieces);
    rte_mempool_free(pools->frames);
    for (memory = pools->memories; memory != NULL; memory = next) {
        next = memory->next;
        memory->release(memory->owner);
        free(memory);
    }
    free(pools);
}

/* Frees pools that are complete: nobody reads there any more. */
static void reap(void)
{
    struct pools **at = &lent;

    while (*at != NULL) {
        struct pools *pools = *at;
        if (rte_mempool_full(pools->heads) && rte_mempool_full(pools->pieces) && rte_mempool_full(pools->frames)) {
            *at = pools->next;
            free_pools(pools);
        } else {
            at = &pools->next;
        }
    }
}

/* Bytes of a buffer that a frame is received into. */
static uint32_t frame_room(const struct settings *settings, uint32_t mtu)
{
    return RTE_MAX(mtu + AROUND, RTE_MAX(settings->room, 2048u)) + RTE_PKTMBUF_HEADROOM;
}

/* Buffers for whole frames: half as many again as wait in caches, and those that go where the device takes no pieces. */
static uint32_t frame_count(uint16_t receive, uint16_t transmit, bool gathers)
{
    return receive + 2 * BURST + 3 * CACHE + (gathers ? 0 : transmit);
}

/* Memory that a port takes when it is opened, at most, as far as it is known before: what a buffer has around it, an
 * eighth for what is lost between buffers, and 4 MiB for the environment and for queues. */
static uint64_t port_bytes(const struct settings *settings)
{
    uint64_t around = sizeof(struct rte_mbuf) + sizeof(struct rte_mempool_objhdr) + RTE_CACHE_LINE_SIZE;
    uint64_t frame = frame_room(settings, settings->mtu == 0 ? UNKNOWN_MTU : settings->mtu) + around;
    uint64_t piece = RTE_PKTMBUF_HEADROOM + HEAD + sizeof(struct rte_mbuf_ext_shared_info) + 2 * around;
    uint64_t bytes = frame * frame_count(settings->receive, settings->transmit, false) +
                     piece * (settings->transmit + BEYOND);

    return bytes + bytes / 8 + (4u << 20);
}

static struct rte_mempool *make_pool(const char *what, uint32_t count, uint16_t private, uint32_t room, int node)
{
    static unsigned int made;
    char name[RTE_MEMPOOL_NAMESIZE];

    snprintf(name, sizeof(name), "%s-%u", what, made++);
    return rte_pktmbuf_pool_create(name, count, CACHE, private, room, node);
}

/* A buffer of a stock; NULL where its pool has none left. */
static struct rte_mbuf *fresh(struct stock *stock)
{
    if (stock->count == 0) {
        if (rte_pktmbuf_alloc_bulk(stock->pool, stock->buffers, BURST) != 0)
            return NULL;
        stock->count = BURST;
    }
    return stock->buffers[--stock->count];
}

/* The port of a device, by the device's name: drivers choose the port's number and, some of them, its name. */
static int find(const char *device, uint16_t *found, struct rte_eth_dev_info *info)
{
    uint16_t id;
    size_t length = strcspn(device, ",");

    RTE_ETH_FOREACH_DEV(id) {
        const char *name;
        if (rte_eth_dev_info_get(id, info) != 0 || info->device == NULL)
            continue;
        name = rte_dev_name(info->device);
        if (strlen(name) == length && strncmp(name, device, length) == 0) {
            *found = id;
            return 0;
        }
    }
    return -ENODEV;
}

/* Gives an interface that the driver has made the MTU that the port has. */
static int set_interface_mtu(unsigned int index, uint32_t mtu)
{
    struct ifreq request = {.ifr_mtu = mtu};
    int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = 0;

    if (socket_fd < 0)
        return -errno;
    if (if_indextoname(index, request.ifr_name) == NULL || ioctl(socket_fd, SIOCSIFMTU, &request) < 0)
        error = -errno;
    close(socket_fd);
    return error;
}

/* Takes out what a ring holds, which would be lost with it. What goes on coming is no reason to go on. */
static void drain(struct port *port)
{
    for (uint32_t bursts = 0; bursts < UINT16_MAX / BURST; bursts++) {
        uint16_t came = rte_eth_rx_burst(port->id, 0, port->coming, BURST);
        if (came == 0)
            break;
        rte_pktmbuf_free_bulk(port->coming, came);
    }
}

static void close_device(void *opaque)
{
    struct port *port = opaque;
    struct memory *memory;

    if (port->started)
        rte_eth_dev_stop(port->id);
    /* The device reads nothing any more. What it cannot be made to forget stays mapped until the process ends. */
    for (memory = port->pools == NULL ? NULL : port->pools->memories; memory != NULL; memory = memory->next) {
        if (memory->mapped
            && rte_dev_dma_unmap(port->device, memory->start, (uintptr_t)memory->start, memory->length) != 0)
            RTE_LOG(WARNING, USER1, "%s: an arena stays mapped: %s\n", rte_dev_name(port->device),
                    rte_strerror(rte_errno));
    }
    if (port->device != NULL) {
        rte_eth_dev_close(port->id);
        rte_dev_remove(port->device);
    }
    sem_post(&port->closed);
}

static void close_port(struct port *port)
{
    rte_pktmbuf_free_bulk(port->going, port->taken);
    rte_pktmbuf_free_bulk(port->coming, port->came);
    rte_pktmbuf_free_bulk(port->heads.buffers, port->heads.count);
    rte_pktmbuf_free_bulk(port->pieces.buffers, port->pieces.count);
    if (port->started && port->ring)
        drain(port);
    sem_init(&port->closed, 0, 0);
    /* net_memif's control messages are dealt with in EAL's interrupt thread, and a peer that goes while the port is
     * being closed would free all of it a second time (memif_disconnect, drivers/net/memif/memif_socket.c). Alarms are
     * in that thread, too: one after the other, both are safe. */
    if (port->memif && rte_eal_alarm_set(1, close_device, port) == 0) {
        while (sem_wait(&port->closed) != 0)
            ;
    } else {
        close_device(port);
    }
    /* Buffers that another port has received from this one, over a ring of this process, are still out there. */
    if (port->pools != NULL) {
        port->pools->next = lent;
        lent = port->pools;
    }
    sem_destroy(&port->closed);
    free(port);
    reap();
}

static struct port *open_port(const char *device, const struct settings *settings, struct facts *facts,
                              const char **doing, int *error)
{
    struct rte_eth_conf configuration = {0};
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    struct port *port = calloc(1, sizeof(*port));
    uint16_t receive = settings->receive, transmit = settings->transmit, present;
    uint32_t mtu = settings->mtu, room;
    unsigned int node;

    reap();
    *doing = "allocating memory";
    *error = ENOMEM;
    if (port == NULL)
        return NULL;
#define DO(what, call)           \
    do {                         \
        int answer = (call);     \
        if (answer < 0) {        \
            *doing = (what);     \
            *error = -answer;    \
            goto failed;         \
        }                        \
    } while (0)

    /* To DPDK, a device that is there already has been found once more. */
    if (find(device, &port->id, &info) == 0)
        DO("finding it", -EBUSY);
    DO("finding its driver", rte_dev_probe(device));
    DO("finding its port", find(device, &port->id, &info));
    port->device = info.device;
    port->virtual = strcmp(rte_bus_name(rte_dev_bus(info.device)), "vdev") == 0;
    port->gathers = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
    port->ring = strcmp(info.driver_name, "net_ring") == 0;
    port->memif = strcmp(info.driver_name, "net_memif") == 0;
    DO("asking for its MTU", rte_eth_dev_get_mtu(port->id, &present));
    if (mtu == 0)
        mtu = present;

    /* Buffers go back to the pool that each came from and are counted there: never MBUF_FAST_FREE. */
    configuration.txmode.offloads = port->gathers ? RTE_ETH_TX_OFFLOAD_MULTI_SEGS : 0;
    configuration.rxmode.mtu = settings->lax ? 0 : mtu;
    DO("configuring it", rte_eth_dev_configure(port->id, 1, 1, &configuration));
    if (!port->virtual && mtu != present)
        DO("setting its MTU", rte_eth_dev_set_mtu(port->id, mtu));
    if (strcmp(info.driver_name, "net_tap") == 0)
        DO("setting its interface's MTU", set_interface_mtu(info.if_index, mtu));
    DO("asking for descriptors", rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &receive, &transmit));

    room = frame_room(settings, mtu);
    if (room > UINT16_MAX)
        DO("allocating buffers of so many bytes", -EMSGSIZE);
    node = rte_eth_dev_socket_id(port->id);
    port->pools = calloc(1, sizeof(*port->pools));
    if (port->pools == NULL)
        DO("allocating memory", -ENOMEM);
    port->pools->heads = make_pool("heads", transmit + BEYOND, 0, RTE_PKTMBUF_HEADROOM + HEAD, node);
    port->pools->pieces =
        make_pool("pieces", transmit + BEYOND, sizeof(struct rte_mbuf_ext_shared_info), 0, node);
    port->pools->frames = make_pool("frames", frame_count(receive, transmit, port->gathers), 0, room, node);
    if (port->pools->heads == NULL || port->pools->pieces == NULL || port->pools->frames == NULL) {
        int why = -rte_errno;
        free_pools(port->pools);
        port->pools = NULL;
        DO("allocating its buffers", why);
    }
    port->heads.pool = port->pools->heads;
    port->pieces.pool = port->pools->pieces;
    DO("making its receive queue", rte_eth_rx_queue_setup(port->id, 0, receive, node, NULL, port->pools->frames));
    DO("making its transmit queue", rte_eth_tx_queue_setup(port->id, 0, transmit, node, NULL));
    DO("starting it", rte_eth_dev_start(port->id));
    port->started = true;
    facts->all = settings->all && rte_eth_promiscuous_enable(port->id) == 0;
    DO("asking for its address", rte_eth_macaddr_get(port->id, &mac));
#undef DO

    memcpy(facts->mac, mac.addr_bytes, sizeof(facts->mac));
    facts->receive = receive;
    facts->mtu = mtu;
    facts->node = node == (unsigned int)SOCKET_ID_ANY ? -1 : (int)node;
    facts->gathers = port->gathers;
    facts->physical = !port->virtual && rte_eal_iova_mode() == RTE_IOVA_PA;
    snprintf(facts->driver, sizeof(facts->driver), "%s", info.driver_name);
    return port;

failed:
    close_port(port);
    return NULL;
}

static int link_is_up(struct port *port)
{
    struct rte_eth_link link;

    return rte_eth_link_get_nowait(port->id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* Lets the device read memory that was learned. `release` is called with `owner` when the port is closed and nobody reads
 * it any more. */
static struct memory *admit(struct port *port, void *start, size_t length, size_t page, const uint64_t *addresses,
                            void *owner, release release, int *error)
{
    struct memory *memory = calloc(1, sizeof(*memory));

    *error = ENOMEM;
    if (memory == NULL)
        return NULL;
    memory->start = start;
    memory->length = length;
    memory->page = page;
    memory->addresses = addresses;
    memory->owner = owner;
    memory->release = release;
    /* A virtual device's driver reads it as we do. Behind an IOMMU addresses on the bus (IOVA) are ours; without one
     * there is nothing to be mapped. */
    if (!port->virtual && addresses == NULL) {
        if (rte_dev_dma_map(port->device, start, (uintptr_t)start, length) != 0) {
            *error = rte_errno;
            free(memory);
            return NULL;
        }
        memory->mapped = true;
    }
    memory->next = port->pools->memories;
    port->pools->memories = memory;
    return memory;
}

/* --- Frames that go --- */

/* A piece is back in its pool, which is all that counts pieces. */
static void back(void *address, void *opaque)
{
    (void)address;
    (void)opaque;
}

/* Appends a part of a memory that is in one piece on the bus.
 *
 * Each piece has a count of its own, which is 1, beside its buffer. One for the whole memory would be counted up and down
 * by atomic instructions, which wait until all that was written before is with the other cores: with a driver that
 * copies frames into shared memory, that takes as long as all else that is done for a short frame. */
static bool append(struct port *port, struct rte_mbuf *first, struct rte_mbuf **last, struct memory *memory, size_t at,
                   uint32_t length)
{
    struct rte_mbuf *part = fresh(&port->pieces);
    uint64_t address = (uintptr_t)(memory->start + at);
    struct rte_mbuf_ext_shared_info *shared;

    if (part == NULL)
        return false;
    shared = rte_mbuf_to_priv(part);
    shared->free_cb = back;
    rte_mbuf_ext_refcnt_set(shared, 1);
    if (memory->addresses != NULL)
        address = memory->addresses[at / memory->page] + at % memory->page;
    /* Mbuf Library, External Buffer. */
    rte_pktmbuf_attach_extbuf(part, memory->start + at, address, length, shared);
    part->data_len = length;
    (*last)->next = part;
    *last = part;
    first->nb_segs++;
    return true;
}

/* How much of it is in one piece on the bus. */
static uint32_t contiguous(const struct memory *memory, size_t at, uint32_t length)
{
    size_t page = at / memory->page;
    size_t so_far = memory->page - at % memory->page;

    if (memory->addresses == NULL)
        return length;
    while (so_far < length && memory->addresses[page + 1] == memory->addresses[page] + memory->page) {
        so_far += memory->page;
        page++;
    }
    return RTE_MIN((size_t)length, so_far);
}

/* Where the device will read the pieces of a frame, behind its head. */
static void tell_places(const struct rte_mbuf *first, struct places *places)
{
    const struct rte_mbuf *part = first->next;

    for (; part != NULL && places->count < PARTS; part = part->next) {
        places->lengths[places->count] = part->data_len;
        places->addresses[places->count] = rte_mbuf_data_iova(part);
        places->count++;
    }
}

/* Whether a piece is copied behind its head: where the device cannot do otherwise; and where a virtual device's driver
 * copies the frame anyway, and has one part less to do with. A ring hands on what it is given.
 *
 * `places`: to be filled in, where that is wanted. */
static int take(struct port *port, const uint8_t *head, uint32_t head_length, struct memory *memory, size_t at,
                uint32_t length, struct places *places)
{
    struct rte_mbuf *first, *last;
    bool fits = port->virtual && !port->ring && head_length + length <= HEAD;
    bool copies = length > 0 && (fits || !port->gathers);
    uint32_t copied = head_length + (copies ? length : 0);

    if (port->taken == BURST)
        return FULL;
    first = copied <= HEAD ? fresh(&port->heads) : rte_pktmbuf_alloc(port->pools->frames);
    if (first == NULL)
        return FULL;
    memcpy(rte_pktmbuf_mtod(first, void *), head, head_length);
    if (copies)
        memcpy(rte_pktmbuf_mtod_offset(first, void *, head_length), memory->start + at, length);
    first->data_len = copied;
    first->pkt_len = head_length + length;
    for (last = first; length > 0 && !copies;) {
        uint32_t part = contiguous(memory, at, length);
        if (!append(port, first, &last, memory, at, part)) {
            rte_pktmbuf_free(first);
            return FULL;
        }
        at += part;
        length -= part;
    }
    if (places != NULL)
        tell_places(first, places);
    port->going[port->taken++] = first;
    return copies ? COPIED : TAKEN;
}

/* Sends what was taken, and says how much of it is left. */
static uint32_t flush(struct port *port)
{
    uint32_t gone = 0;

    while (gone < port->taken) {
        uint16_t went = rte_eth_tx_burst(port->id, 0, port->going + gone, port->taken - gone);
        if (went == 0)
            break;
        gone += went;
    }
    port->taken -= gone;
    if (port->taken > 0 && gone > 0)
        memmove(port->going, port->going + gone, port->taken * sizeof(port->going[0]));
    return port->taken;
}

/* --- Frames that come --- */

static void done(struct port *port)
{
    rte_pktmbuf_free_bulk(port->coming, port->came);
    port->came = 0;
}

static uint32_t receive(struct port *port, const struct frame **frames)
{
    done(port);
    port->came = rte_eth_rx_burst(port->id, 0, port->coming, BURST);
    for (uint32_t at = 0; at < port->came; at++) {
        const struct rte_mbuf *buffer = port->coming[at];
        port->frames[at].bytes = rte_pktmbuf_mtod(buffer, const uint8_t *);
        port->frames[at].length = buffer->nb_segs == 1 ? buffer->data_len : buffer->pkt_len;
        port->frames[at].pieces = buffer->nb_segs;
    }
    *frames = port->frames;
    return port->came;
}

/* A frame of several pieces in one, until the next call. NULL where it is longer than any frame. */
static const uint8_t *join(struct port *port, uint32_t frame)
{
    const struct rte_mbuf *buffer = port->coming[frame];
    size_t length = 0;

    for (; buffer != NULL; buffer = buffer->next) {
        if (buffer->data_len > sizeof(port->joined) - length)
            return NULL;
        memcpy(port->joined + length, rte_pktmbuf_mtod(buffer, const void *), buffer->data_len);
        length += buffer->data_len;
    }
    return length == port->frames[frame].length ? port->joined : NULL;
}

static void count(struct port *port, struct statistics *statistics)
{
    struct rte_eth_stats stats;

    if (rte_eth_stats_get(port->id, &stats) == 0) {
        statistics->dropped = stats.imissed + stats.rx_nombuf;
        statistics->damaged = stats.ierrors;
    }
}

/* The one name that is looked up. */
extern __attribute__((visibility("default"))) const struct shim thalweg_dpdk;
const struct shim thalweg_dpdk = {
    .version = rte_version,
    .start = start,
    .enter = enter,
    .leave = leave,
    .lcore = lcore,
    .container = container,
    .learn = learn,
    .forget = forget,
    .port_bytes = port_bytes,
    .open = open_port,
    .close = close_port,
    .link = link_is_up,
    .admit = admit,
    .take = take,
    .flush = flush,
    .receive = receive,
    .join = join,
    .done = done,
    .count = count,
};
