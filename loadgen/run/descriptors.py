"""File descriptors: raise the soft limit to what a run needs, or say how many are missing."""

import resource

from loadgen.errors import EnvironmentFault

_SPARE = 64  # files, pipes, timers and the loop's own


def provide_descriptors(connections: int) -> None:
    """Make room for so many sockets; raises EnvironmentFault where the hard limit forbids it."""
    needed = connections + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise EnvironmentFault(
            f"{connections} connections need {needed} file descriptors and this shell allows "
            f"{hard}; raise it with 'ulimit -n {needed}' or lower the load"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
