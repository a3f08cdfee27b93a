"""Every error that is raised on purpose."""

from __future__ import annotations


class ReportError(Exception):
    """There is nothing to report, or it cannot be read or written."""
