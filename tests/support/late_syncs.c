/* A disk whose syncs are late: loaded into a process, it delays its calls of fsync and fdatasync.

       LD_PRELOAD=bench-data/late_syncs.so python -m pytest tests/system

   Most syncs are not late, and one of fifty takes seconds, as on a disk that others use too. How
   late one is depends on chance alone: on the time and on the thread. What the process starts is
   late as well, since it inherits LD_PRELOAD. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

typedef int (*sync_call)(int descriptor);

static const struct {
    unsigned percent;
    long late_ms;
} LATENESS[] = {{2, 2500}, {8, 600}, {20, 50}};

static unsigned chance_below_100(void) {
    static __thread uint64_t state;
    struct timespec now;
    if (!state) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = ((uint64_t)now.tv_nsec << 20) ^ (uint64_t)now.tv_sec ^ (uintptr_t)&state;
        state |= 1;
    }
    /* Marsaglia's xorshift. */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % 100);
}

static void be_late(void) {
    unsigned drawn = chance_below_100(), below = 0;
    for (unsigned i = 0; i < sizeof LATENESS / sizeof *LATENESS; i++) {
        below += LATENESS[i].percent;
        if (drawn < below) {
            struct timespec wait = {LATENESS[i].late_ms / 1000,
                                    LATENESS[i].late_ms % 1000 * 1000000};
            nanosleep(&wait, NULL);
            return;
        }
    }
}

int fsync(int descriptor) {
    sync_call real = (sync_call)dlsym(RTLD_NEXT, "fsync");
    be_late();
    return real(descriptor);
}

int fdatasync(int descriptor) {
    sync_call real = (sync_call)dlsym(RTLD_NEXT, "fdatasync");
    be_late();
    return real(descriptor);
}
