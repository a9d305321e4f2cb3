"""The errors of kvlab: one class a subject, one base class to catch them all.

A text is a sentence with four facts: the rule, the value, where it stands, and the bound; then what
to do instead. Errors are raised where a caller's value enters the package.
"""


class KvlabError(ValueError):
    """A value that a caller passed breaks a rule of kvlab."""


class IndexSpaceError(KvlabError):
    """An id lies outside the index space that its wrapper declares, or is of another space."""


class LayoutError(KvlabError):
    """The numbers of a layout do not fit each other, or two layouts differ."""


class RankMismatchError(KvlabError):
    """Rows, a pool, or a plan belong to different ranks."""


class PoolError(KvlabError):
    """A pool, an allocator, or a table was asked for something that it cannot do."""


class BackupError(KvlabError):
    """A host copy does not fit the place it is to be restored to, or was consumed before."""


class HostFullError(BackupError):
    """The host has no room for a backup: nothing was taken, and the caller may do without one."""


class WorkloadError(KvlabError):
    """A workload, or the file that holds one, breaks the rules of requests."""


class CapacityError(KvlabError):
    """A memory budget, a model geometry, and a layout do not give a usable pool."""


class StudyError(KvlabError):
    """The parameters of a study do not describe something that can be run."""


class BackendError(KvlabError):
    """An op was asked of a backend that cannot serve it here, or got tensors it cannot take."""
