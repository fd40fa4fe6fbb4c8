"""File descriptors: raise the soft limit to what a run needs, or say how many are missing."""

import resource

from loadgen.client.transport import SPARE_DESCRIPTORS
from loadgen.errors import EnvironmentFault

_AT_EASE = 4  # sockets a slot: its own, and earlier ones that wait for the end of their framing


def provide_descriptors(connections: int) -> None:
    """Make room for so many sockets, and for more of them where the hard limit allows it.

    Raises EnvironmentFault where it does not allow as many as are asked for.
    """
    needed = connections + SPARE_DESCRIPTORS
    wanted = _AT_EASE * connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise EnvironmentFault(
            f"{connections} connections need {needed} file descriptors and this shell allows "
            f"{hard}; raise it with 'ulimit -n {needed}' or lower the load"
        )
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except ValueError:  # a system may allow less than its hard limit says (macOS does)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
