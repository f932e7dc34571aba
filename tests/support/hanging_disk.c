/* A disk that hangs: loaded into a process, it holds up its syncs in one folder.

       LD_PRELOAD=hanging_disk.so HANGING_FOLDER=/data/b strandline serve ...

   While the file $HANGING_FOLDER.hangs exists, fsync and fdatasync of what lies below the folder do
   not return. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*sync_call)(int descriptor);

static void wait_for_disk(int descriptor) {
    const char *folder = getenv("HANGING_FOLDER");
    char link[64], path[PATH_MAX], flag[PATH_MAX];
    if (!folder) {
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        return;
    }
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) {
        return;
    }
    snprintf(flag, sizeof flag, "%s.hangs", folder);
    while (!access(flag, F_OK)) {
        struct timespec wait = {0, 20000000};
        nanosleep(&wait, NULL);
    }
}

int fsync(int descriptor) {
    sync_call real = (sync_call)dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(descriptor);
    return real(descriptor);
}

int fdatasync(int descriptor) {
    sync_call real = (sync_call)dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(descriptor);
    return real(descriptor);
}
