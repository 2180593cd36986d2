/* A card as XDMA's driver shows it: each read of /dev/xdma0_c2h_0 is a transfer of the next frame into the reader's memory, and
 * reads that are under way together are answered one after the other. It counts its frames, and goes on whether or not
 * anybody reads: simulated, by CUSE.
 *
 * card FRAMES MICROSECONDS: so many frames, one each so many microseconds; then a read is 0 bytes, the end.
 *
 * A frame: its number (64 bits, little endian), and 4 to 2052 bytes of (number + 3 * place) modulo 256.
 */
#define FUSE_USE_VERSION 31
#include <cuse_lowlevel.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t frames, period, next, began;
static pthread_mutex_t engine = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * UINT64_C(1000000) + time.tv_nsec / 1000;
}

static void start(fuse_req_t request, struct fuse_file_info *file)
{
    file->direct_io = 1;
    fuse_reply_open(request, file);
}

static void transfer(fuse_req_t request, size_t size, off_t offset, struct fuse_file_info *file)
{
    uint8_t frame[8 + 2052];
    uint64_t number, due;
    size_t length;

    (void)offset;
    (void)file;
    pthread_mutex_lock(&engine);
    if (began == 0)
        began = now();
    /* What was to be sent while nobody read is lost: a card has room for two. */
    number = (now() - began) / period;
    if (number > next + 2)
        next = number;
    number = next++;
    due = began + number * period;
    for (uint64_t time = now(); time < due; time = now()) {
        uint64_t left = due - time;
        struct timespec pause = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    pthread_mutex_unlock(&engine);
    if (number >= frames) {
        fuse_reply_buf(request, NULL, 0);
        return;
    }
    length = 8 + 4 + number * 64 % 2049;
    memcpy(frame, &number, 8);
    for (size_t at = 8; at < length; at++)
        frame[at] = (uint8_t)(number + 3 * at);
    fuse_reply_buf(request, (const char *)frame, length < size ? length : size);
}

int main(int count, char **words)
{
    const char *name[] = {"DEVNAME=xdma0_c2h_0"};
    const struct cuse_info info = {.dev_info_argc = 1, .dev_info_argv = name};
    const struct cuse_lowlevel_ops card = {.open = start, .read = transfer};
    char *own[] = {words[0], "-f", NULL};

    if (count != 3)
        return 2;
    frames = strtoull(words[1], NULL, 10);
    period = strtoull(words[2], NULL, 10);
    return cuse_lowlevel_main(2, own, &info, &card, NULL);
}
