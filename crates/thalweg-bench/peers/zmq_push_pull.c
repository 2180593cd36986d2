/* Small and middle fragments by libzmq: N processes PUSH messages of one size over one endpoint, one PULLs them.
 *
 *   zmq_push_pull SENDERS BYTES SECONDS IO_THREADS ENDPOINT
 *
 * ENDPOINT is one that can be bound: tcp://127.0.0.1:*, ipc://PATH. Prints one JSON object: messages and bytes received,
 * and the seconds from the first message to the last. A message is a constant buffer; long ones are handed to libzmq
 * without a copy (zmq_msg_init_data), short ones are copied by it (zmq_send), which is the faster way for them. Sockets
 * keep libzmq's default of 1000 messages.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

/* From so many bytes on, handing a buffer over is cheaper than copying it. */
#define LONG 8192

static void fail(const char *doing)
{
    fprintf(stderr, "zmq_push_pull: %s: %s\n", doing, zmq_strerror(zmq_errno()));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

static void set(void *socket, int option, int value)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) != 0)
        fail("zmq_setsockopt");
}

/* Waits for the endpoint on `from`, then sends until it is killed. */
static void push(int from, size_t bytes)
{
    char endpoint[256] = {0};
    if (read(from, endpoint, sizeof endpoint - 1) <= 0)
        exit(1);
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_PUSH);
    char *buffer = malloc(bytes);
    if (!socket || !buffer)
        fail("zmq_socket");
    memset(buffer, 0x5a, bytes);
    set(socket, ZMQ_LINGER, 0);
    if (zmq_connect(socket, endpoint) != 0)
        fail("zmq_connect");
    for (;;) {
        if (bytes >= LONG) {
            zmq_msg_t message;
            zmq_msg_init_data(&message, buffer, bytes, keep, NULL);
            if (zmq_msg_send(&message, socket, 0) < 0)
                fail("zmq_msg_send");
        } else if (zmq_send(socket, buffer, bytes, 0) < 0) {
            fail("zmq_send");
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        int major, minor, patch;
        zmq_version(&major, &minor, &patch);
        printf("libzmq %d.%d.%d\n", major, minor, patch);
        return 0;
    }
    if (argc != 6) {
        fprintf(stderr, "usage: zmq_push_pull SENDERS BYTES SECONDS IO_THREADS ENDPOINT\n");
        return 2;
    }
    int senders = atoi(argv[1]);
    size_t bytes = strtoul(argv[2], NULL, 10);
    double seconds = atof(argv[3]);
    int threads = atoi(argv[4]);
    if (senders < 1 || senders > 64 || bytes < 1 || seconds <= 0 || threads < 1) {
        fprintf(stderr, "zmq_push_pull: 1 to 64 senders, at least one byte, more than no time, a thread\n");
        return 2;
    }

    pid_t child[64];
    int pipes[64][2];
    for (int i = 0; i < senders; i++) {
        if (pipe(pipes[i]) != 0 || (child[i] = fork()) < 0) {
            perror("zmq_push_pull: fork");
            return 1;
        }
        if (child[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(pipes[i][1]);
            push(pipes[i][0], bytes);
        }
    }

    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, threads);
    void *socket = zmq_socket(context, ZMQ_PULL);
    char endpoint[256];
    size_t length = sizeof endpoint;
    if (!socket)
        fail("zmq_socket");
    if (zmq_bind(socket, argv[5]) != 0)
        fail("zmq_bind");
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &length) != 0)
        fail("zmq_getsockopt");
    for (int i = 0; i < senders; i++)
        if (write(pipes[i][1], endpoint, strlen(endpoint)) < 0)
            fail("telling a sender where to connect");

    zmq_msg_t message;
    zmq_msg_init(&message);
    unsigned long long messages = 0;
    double began = 0, ended = 0;
    do {
        if (zmq_msg_recv(&message, socket, 0) < 0)
            fail("zmq_msg_recv");
        if (zmq_msg_size(&message) != bytes)
            fail("a message of another size");
        if (messages == 0)
            began = now();
        messages++;
        if (messages % 64 == 0)
            ended = now();
    } while (ended - began < seconds);

    for (int i = 0; i < senders; i++) {
        kill(child[i], SIGKILL);
        waitpid(child[i], NULL, 0);
    }
    printf("{\"messages\": %llu, \"bytes\": %llu, \"seconds\": %.6f}\n", messages,
           messages * (unsigned long long)bytes, ended - began);
    return 0;
}
