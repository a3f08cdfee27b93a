"""The Ray cluster that commands with `--engine ray` work on: that of RAY_ADDRESS, or the one that is here."""

from __future__ import annotations

import logging
import os
from typing import Any


class ClusterError(RuntimeError):
    """There is no Ray, or no cluster: the message says what to do."""


def connected() -> Any:
    """The module `ray`, with a connection."""
    try:
        import ray
    except ImportError:
        raise ClusterError('--engine ray needs Ray: pip install "ditorch[ray]".') from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ClusterError(
                f"There is no Ray cluster at {address!r} ({reason}): start one with `ray start --head`, or set "
                "RAY_ADDRESS."
            ) from None
    return ray
