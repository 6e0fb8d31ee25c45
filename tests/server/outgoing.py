"""What a process and its children try to reach beyond this machine: a library that is loaded before
the C library (LD_PRELOAD) writes down names that are looked up and addresses that are not on the
loopback interface, and refuses them. It needs gcc, and no rights."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void note(const char *what, const char *where) {
    int saved = errno, file = open(RECORD, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    dprintf(file, "%s %s\n", what, where);
    close(file);
    errno = saved;
}

static int is_name(const char *node) {
    unsigned char bytes[16];
    return node && *node && strcmp(node, "localhost") && !strchr(node, '%') &&
           inet_pton(AF_INET, node, bytes) != 1 && inet_pton(AF_INET6, node, bytes) != 1;
}

static int leaves(const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return 0;
    if (address->sa_family == AF_INET) {
        struct in_addr ip = ((const struct sockaddr_in *)address)->sin_addr;
        if (ntohl(ip.s_addr) >> 24 == 127 || !ip.s_addr) return 0;
        inet_ntop(AF_INET, &ip, text, sizeof text);
    } else {
        struct in6_addr ip = ((const struct sockaddr_in6 *)address)->sin6_addr;
        if (IN6_IS_ADDR_LOOPBACK(&ip) || IN6_IS_ADDR_UNSPECIFIED(&ip)) return 0;
        if (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127) return 0;
        inet_ntop(AF_INET6, &ip, text, sizeof text);
    }
    note("address", text);
    errno = ENETUNREACH;
    return 1;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    if (is_name(node)) { note("name", node); return EAI_NONAME; }
    return REAL(getaddrinfo)(node, service, hints, found);
}

struct hostent *gethostbyname(const char *node) {
    if (is_name(node)) { note("name", node); return NULL; }
    return REAL(gethostbyname)(node);
}

int connect(int fd, const struct sockaddr *address, socklen_t size) {
    return leaves(address) ? -1 : REAL(connect)(fd, address, size);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *address,
               socklen_t address_size) {
    return leaves(address) ? -1 : REAL(sendto)(fd, data, size, flags, address, address_size);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return leaves(message->msg_name) ? -1 : REAL(sendmsg)(fd, message, flags);
}
"""


class Outgoing:
    def __init__(self, folder: Path) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc")
        self._record = folder / "outgoing.txt"
        self.library = folder / "outgoing.so"
        command = ["gcc", "-shared", "-fPIC", "-w", f'-DRECORD="{self._record}"', "-x", "c", "-"]
        subprocess.run(
            [*command, "-o", str(self.library), "-ldl"], input=_SOURCE, text=True, check=True
        )

    @property
    def tried(self) -> set[str]:
        """`name HOST` or `address IP` for each."""
        return set(self._record.read_text().splitlines()) if self._record.exists() else set()
