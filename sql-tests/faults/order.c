/* Preloaded into the shell: writes down, in the order in which they happened, what decides whether a write outlives a
 * power failure. One line each: the call, its path, the other path. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void note(const char *call, const char *path, const char *other) {
    const char *log = getenv("ORDER_LOG");
    if (!log) return;
    char line[2 * PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", call, path, other);
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) abort();
    if (syscall(SYS_write, fd, line, length) != length) abort();
    syscall(SYS_close, fd);
}

static void note_file(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    note(call, path, "");
}

static void note_write(int fd) {
    if (fd == STDOUT_FILENO) return note("answer", "", "");
    struct stat file;
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) note_file("write", fd);
}

int fsync(int fd) {
    int result = syscall(SYS_fsync, fd);
    if (result == 0) note_file("sync", fd);
    return result;
}

int fdatasync(int fd) {
    int result = syscall(SYS_fdatasync, fd);
    if (result == 0) note_file("sync", fd);
    return result;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t result = syscall(SYS_write, fd, bytes, count);
    if (result > 0) note_write(fd);
    return result;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t result = syscall(SYS_writev, fd, parts, count);
    if (result > 0) note_write(fd);
    return result;
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    int result = syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    if (result == 0) note("link", from, to);
    return result;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int rename(const char *from, const char *to) {
    int result = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0) note("rename", from, to);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    int result = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (result == 0) note("mkdir", path, "");
    return result;
}
