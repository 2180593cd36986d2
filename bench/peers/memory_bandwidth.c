/* How fast one thread reads memory: the bound of anything that looks at each byte once.
 *
 *   memory_bandwidth MIB SECONDS
 *
 * Reads a buffer of MIB mebibytes from front to back, over and over, and prints one JSON object with the rate. Larger
 * than the last-level cache it measures memory, smaller the cache.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) << 20 : 0;
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    if (bytes == 0 || seconds <= 0) {
        fprintf(stderr, "usage: memory_bandwidth MIB SECONDS\n");
        return 2;
    }
    uint64_t *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        perror("memory_bandwidth: mmap");
        return 1;
    }
    madvise(buffer, bytes, MADV_HUGEPAGE);
    memset(buffer, 0x5a, bytes);

    uint64_t sum[16] = {0};
    double began = now(), elapsed;
    uint64_t read = 0;
    do {
        for (size_t i = 0; i < bytes / 8; i += 16)
            for (int lane = 0; lane < 16; lane++)
                sum[lane] += buffer[i + lane];
        read += bytes;
        elapsed = now() - began;
    } while (elapsed < seconds);

    uint64_t total = 0;
    for (int lane = 0; lane < 16; lane++)
        total += sum[lane];
    printf("{\"bytes_per_second\": %.0f, \"mebibytes\": %zu, \"sum\": %llu}\n", (double)read / elapsed, bytes >> 20,
           (unsigned long long)total);
    return 0;
}
