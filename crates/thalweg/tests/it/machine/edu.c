// QEMU's "edu" device (https://www.qemu.org/docs/master/specs/edu.html), driven from user space by VFIO.
//   edu iommu ADDRESS    DMA by the addresses that were mapped, and by others; interrupts by MSI
//   edu noiommu ADDRESS  DMA by physical addresses, VFIO in its no-IOMMU mode
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/vfio.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 2 << 20, PART = 512, LAST = 4096 - PART };
enum { IDENTITY = 0x00, CHECK = 0x04, INTERRUPTED = 0x24, ACKNOWLEDGE = 0x64 };
enum { FROM = 0x80, TO = 0x88, COUNT = 0x90, COMMAND = 0x98, BUFFER = 0x40000 };
enum direction { TO_DEVICE = 1 | 4, TO_MEMORY = 1 | 2 | 4 }; // start, direction, interrupt at the end

static volatile uint8_t *registers;
static int interrupt;

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void check(const char *what, int holds) {
    printf("%s: %s\n", holds ? "holds" : "does not hold", what);
    if (!holds)
        exit(1);
}

static void dma(uint64_t address, enum direction direction) {
    *(volatile uint64_t *)(registers + FROM) = direction == TO_DEVICE ? address : BUFFER;
    *(volatile uint64_t *)(registers + TO) = direction == TO_DEVICE ? BUFFER : address;
    *(volatile uint64_t *)(registers + COUNT) = PART;
    *(volatile uint64_t *)(registers + COMMAND) = direction;
    struct pollfd wait = {interrupt, POLLIN, 0};
    check("an interrupt says that the DMA is over", poll(&wait, 1, 30000) == 1);
    uint64_t count;
    if (read(interrupt, &count, sizeof count) != sizeof count)
        die("eventfd");
    *(volatile uint32_t *)(registers + ACKNOWLEDGE) = *(volatile uint32_t *)(registers + INTERRUPTED);
}

// The page's bytes go to the device, and from it to the end of the page.
static void there_and_back(const char *what, uint8_t *page, uint64_t address) {
    for (int i = 0; i < PART; i++)
        page[i] = i * 7 + what[0];
    memset(page + LAST, 0, PART);
    dma(address, TO_DEVICE);
    dma(address + LAST, TO_MEMORY);
    check(what, !memcmp(page, page + LAST, PART));
}

static uint8_t *memory(const char *name, int flags) {
    int fd = memfd_create(name, flags);
    if (fd < 0 || ftruncate(fd, SIZE))
        die(name);
    uint8_t *at = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED || mlock(at, SIZE))
        die(name);
    return at;
}

// Documentation/admin-guide/mm/pagemap.rst
static uint64_t physical(void *at) {
    uint64_t entry = 0;
    int map = open("/proc/self/pagemap", O_RDONLY);
    if (pread(map, &entry, 8, (uintptr_t)at / 4096 * 8) != 8 || !(entry << 9))
        die("pagemap");
    close(map);
    return (entry & ((1ull << 55) - 1)) * 4096;
}

static void map(int container, uint8_t *at, uint64_t address, int flags) {
    struct vfio_iommu_type1_dma_map map = {sizeof map, flags, (uintptr_t)at, address, SIZE};
    if (ioctl(container, VFIO_IOMMU_MAP_DMA, &map))
        die("VFIO_IOMMU_MAP_DMA");
}

// Opens the device as Documentation/driver-api/vfio.rst says, and returns the container.
static int open_device(const char *address, int has_iommu) {
    char path[PATH_MAX], link[PATH_MAX] = {0};
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", address);
    if (readlink(path, link, sizeof link - 1) < 0)
        die(path);
    snprintf(path, sizeof path, "/dev/vfio/%s%s", has_iommu ? "" : "noiommu-", basename(link));
    int container = open("/dev/vfio/vfio", O_RDWR), group = open(path, O_RDWR);
    if (container < 0 || group < 0)
        die(path);
    if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &container))
        die("VFIO_GROUP_SET_CONTAINER");
    if (ioctl(container, VFIO_SET_IOMMU, has_iommu ? VFIO_TYPE1v2_IOMMU : VFIO_NOIOMMU_IOMMU))
        die("VFIO_SET_IOMMU");
    int device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address);
    if (device < 0)
        die("VFIO_GROUP_GET_DEVICE_FD");

    struct vfio_region_info bar = {.argsz = sizeof bar, .index = 0};
    struct vfio_region_info config = {.argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX};
    if (ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &bar) || ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config))
        die("VFIO_DEVICE_GET_REGION_INFO");
    registers = mmap(0, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, bar.offset);
    if (registers == MAP_FAILED)
        die("mapping the device's registers");
    uint16_t command = 6; // memory, bus master
    if (pwrite(device, &command, 2, config.offset + 4) != 2)
        die("the device's command register");

    char buffer[sizeof(struct vfio_irq_set) + sizeof(int)];
    struct vfio_irq_set *set = (void *)buffer;
    *set = (struct vfio_irq_set){sizeof buffer, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                                 VFIO_PCI_MSI_IRQ_INDEX, 0, 1};
    interrupt = eventfd(0, EFD_CLOEXEC);
    memcpy(set->data, &interrupt, sizeof interrupt);
    if (ioctl(device, VFIO_DEVICE_SET_IRQS, set))
        die("VFIO_DEVICE_SET_IRQS");
    return container;
}

int main(int count, char **words) {
    if (count != 3)
        return 64;
    setvbuf(stdout, 0, _IOLBF, 0);
    int has_iommu = !strcmp(words[1], "iommu");
    int container = open_device(words[2], has_iommu);
    check("the device is edu", (*(volatile uint32_t *)(registers + IDENTITY) & 0xffff) == 0xed);
    *(volatile uint32_t *)(registers + CHECK) = 0x1234;
    check("the device computes", *(volatile uint32_t *)(registers + CHECK) == ~0x1234u);

    uint8_t *plain = memory("plain", 0), *huge = memory("huge", MFD_HUGETLB);
    if (!has_iommu) {
        there_and_back("DMA lands in a page, by its physical address", plain, physical(plain));
        there_and_back("DMA lands in a huge page, by its physical address", huge, physical(huge));
        return 0;
    }
    uint64_t at = 0x100000000, huge_at = 0x200000000, read_only_at = 0x300000000;
    map(container, plain, at, VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE);
    map(container, huge, huge_at, VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE);
    map(container, plain, read_only_at, VFIO_DMA_MAP_FLAG_READ);
    there_and_back("DMA lands in memory, by its mapped address", plain, at);
    there_and_back("DMA lands in a huge page, by its mapped address", huge, huge_at);

    // The device has bytes that the page has not.
    memset(plain, 0x55, SIZE);
    dma(read_only_at, TO_MEMORY);
    check("DMA does not write where it may only read", plain[0] == 0x55 && plain[PART - 1] == 0x55);
    dma(physical(plain), TO_MEMORY);
    check("DMA does not reach memory by an address that is not mapped", plain[0] == 0x55 && plain[PART - 1] == 0x55);
    there_and_back("the device works on after a fault", huge, huge_at);
    return 0;
}
