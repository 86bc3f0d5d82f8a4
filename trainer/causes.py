"""What kind of trouble an error is, and what to do about it. Imports no torch: kinds are known by their words."""

import errno

# The `cause` of an `end` event.
CAUSES = ("signal", "exit", "exception", "hang", "port", "memory", "disk", "data", "checkpoint", "drift", "nonfinite")

ADVICE = {
    "memory": "try a smaller batch, a smaller network or fewer processes",
    "disk": "see that the disk has room and can be written, then resume",
    "port": "see that the ranks reach one another (on one machine: a firewall on its loopback), then resume",
    "hang": "if it is only slow, raise the silence limit; then resume from the last checkpoint",
    "drift": "resume, and all ranks start alike from the last checkpoint; a rank that drifts again has faulty hardware",
    "exit": "the log may say why",
    "exception": "the log has the whole trace",
}

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "unable to allocate", "bad alloc")
_PORT_WORDS = ("eaddrinuse", "address already in use", "connection refused", "failed to listen")
_BY_NAME = {
    "MemoryError": "memory",
    "OutOfMemoryError": "memory",
    "DataError": "data",
    "CheckpointError": "checkpoint",
    "DriftError": "drift",
    "DistNetworkError": "port",
}


def cause_of(error: BaseException) -> str:
    """One of CAUSES; "exception" for what is none of the others."""
    if type(error).__name__ in _BY_NAME:
        return _BY_NAME[type(error).__name__]
    words = str(error).lower()
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return "disk"
    if (isinstance(error, OSError) and error.errno == errno.ENOMEM) or any(word in words for word in _MEMORY_WORDS):
        return "memory"
    if any(word in words for word in _PORT_WORDS):
        return "port"
    return "exception"


def with_advice(text: str, cause: str) -> str:
    advice = ADVICE.get(cause)
    return f"{text}: {advice}" if advice else text
