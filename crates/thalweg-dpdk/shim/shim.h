/* What Rust and the shim say to each other: numbers, addresses and functions. No type of DPDK's is in it, so that the
 * program is compiled without DPDK and src/shim.rs repeats all of it.
 */
#ifndef THALWEG_SHIM_H
#define THALWEG_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Frames in a burst, either way. */
#define BURST 64

struct port;
struct memory;

/* How a port is to be opened. */
struct settings {
    uint32_t mtu;      /* 0: as the device has it. */
    uint32_t room;     /* Bytes that the driver wants to have in a receive buffer, where it is more than a frame. */
    uint32_t lax;      /* Whether the driver carries frames of any length, whatever it says is the longest. */
    uint32_t all;      /* Whether frames for others are taken, too, where the driver can. */
    uint16_t receive;  /* Descriptors for frames that come. */
    uint16_t transmit; /* Descriptors for frames that go. */
};

/* What an open port is like. */
struct facts {
    uint8_t mac[6];
    uint16_t receive; /* Descriptors it has got. */
    uint32_t mtu;
    int32_t node;     /* NUMA node; -1: none in particular. */
    int32_t gathers;  /* Whether it takes a frame in pieces. */
    int32_t physical; /* Whether it reads memory by physical addresses (IOVA mode PA). */
    int32_t all;      /* Whether it takes frames for others, too. */
    char driver[32];
};

/* A frame that has come. */
struct frame {
    const uint8_t *bytes; /* The first piece. */
    uint32_t length;
    uint32_t pieces;
};

/* Where on the bus a device reads a piece: the first parts of it. */
#define PARTS 8
struct places {
    uint32_t count;
    uint32_t lengths[PARTS];
    uint64_t addresses[PARTS];
};

struct statistics {
    uint64_t dropped; /* Came and found no room. */
    uint64_t damaged;
};

/* What `take` says. */
#define TAKEN 0
#define COPIED 1
#define FULL 2

typedef void (*log_line)(int level, const char *bytes, size_t length);
typedef void (*release)(void *owner);

struct shim {
    const char *(*version)(void);
    int (*start)(int count, char **arguments, log_line log);
    int (*enter)(void);
    void (*leave)(void);
    uint32_t (*lcore)(void);
    int (*container)(void);
    int (*learn)(void *start, size_t length, size_t page, uint64_t *addresses);
    int (*forget)(void *start, size_t length);
    uint64_t (*port_bytes)(const struct settings *settings);
    struct port *(*open)(const char *device, const struct settings *settings, struct facts *facts, const char **doing,
                         int *error);
    void (*close)(struct port *port);
    int (*link)(struct port *port);
    struct memory *(*admit)(struct port *port, void *start, size_t length, size_t page, const uint64_t *addresses,
                            void *owner, release release, int *error);
    int (*take)(struct port *port, const uint8_t *head, uint32_t head_length, struct memory *memory, size_t at,
                uint32_t length, struct places *places);
    uint32_t (*flush)(struct port *port);
    uint32_t (*receive)(struct port *port, const struct frame **frames);
    const uint8_t *(*join)(struct port *port, uint32_t frame);
    void (*done)(struct port *port);
    void (*count)(struct port *port, struct statistics *statistics);
};

#endif
