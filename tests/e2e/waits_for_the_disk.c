/* Stands in front of fsync and fdatasync, by LD_PRELOAD, for files below WAITS_BELOW. Wait number WAITS_CUT kills the
 * process before it. Of each wait before that, WAITS_KEPT gets what is on the disk from then on: a line "NUMBER PATH"
 * in "list", and in the file NUMBER the bytes of the file, or the names in the folder. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int waits;

static void keep(int number, const char *path)
{
    char name[PATH_MAX], buffer[65536];
    struct stat facts;
    FILE *to, *list;
    snprintf(name, sizeof name, "%s/%d", getenv("WAITS_KEPT"), number);
    to = fopen(name, "w");
    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        DIR *folder = opendir(path);
        for (struct dirent *each; (each = readdir(folder)) != NULL;)
            fprintf(to, "%s\n", each->d_name);
        closedir(folder);
    } else {
        FILE *from = fopen(path, "r");
        for (size_t size; (size = fread(buffer, 1, sizeof buffer, from)) > 0;)
            fwrite(buffer, 1, size, to);
        fclose(from);
    }
    fclose(to);
    snprintf(name, sizeof name, "%s/list", getenv("WAITS_KEPT"));
    list = fopen(name, "a");
    fprintf(list, "%d %s\n", number, path);
    fclose(list);
}

static int wait_for(int fd, const char *function)
{
    const char *below = getenv("WAITS_BELOW"), *cut = getenv("WAITS_CUT");
    char link[64], path[PATH_MAX];
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, function);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = '\0';
    if (below == NULL || strncmp(path, below, strlen(below)) != 0)
        return real(fd);
    int number = __sync_add_and_fetch(&waits, 1);
    if (cut != NULL && number == atoi(cut))
        kill(getpid(), SIGKILL);
    int result = real(fd);
    if (result == 0)
        keep(number, path);
    return result;
}

int fsync(int fd)
{
    return wait_for(fd, "fsync");
}

int fdatasync(int fd)
{
    return wait_for(fd, "fdatasync");
}
