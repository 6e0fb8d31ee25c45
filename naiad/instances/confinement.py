"""`--worker-user`, `--worker-memory-limit` and `--worker-process-limit` -> the Confinement of every
worker. naiad.worker.confinement applies it."""

from __future__ import annotations

import os
import pwd

from naiad.errors import invalid_arg
from naiad.ipc.work import Confinement


def confinement(user: str, max_memory_bytes: int, max_processes: int) -> Confinement:
    """`user` is a name or a user id. Raises NaiadError if there is no such user, or if the server
    may not change users."""
    if not user:
        if max_processes:
            raise invalid_arg(
                "--worker-process-limit needs --worker-user: Linux counts the processes of a user, "
                "and those of the server's own user include the server"
            )
        return Confinement(max_memory_bytes=max_memory_bytes)
    entry = _entry(user)
    if entry.pw_uid != os.geteuid() and os.geteuid() != 0:
        raise invalid_arg(
            f"--worker-user={user} needs a server that runs as root; it runs as user {os.geteuid()}"
        )
    if entry.pw_uid == 0:
        raise invalid_arg("--worker-user must not be root")
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid) if entry.pw_name else [entry.pw_gid]
    return Confinement(
        entry.pw_uid,
        entry.pw_gid,
        groups,
        entry.pw_name,
        entry.pw_dir,
        max_memory_bytes,
        max_processes,
    )


def _entry(user: str) -> pwd.struct_passwd:
    """An id without an entry in the user database, as containers have, is a user without a name
    whose group has the same id."""
    try:
        if not user.isdigit():
            return pwd.getpwnam(user)
        return pwd.getpwuid(int(user))
    except (KeyError, OverflowError):
        if user.isdigit() and int(user) < 2**32 - 1:
            return pwd.struct_passwd(("", "", int(user), int(user), "", "/", ""))
        raise invalid_arg(
            f"--worker-user: there is no user '{user}', expected a name or an id"
        ) from None
