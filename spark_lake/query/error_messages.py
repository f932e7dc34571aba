"""Trims errors for users of Spark: the message first, not thirty stack frames before it.

Spark shows the traceback of a Python source as text, the message at its end. What we raise on
purpose names the object and the remedy by itself: neither the frames inside the lake nor the errors
of s3fs below, which are chained to it and come first, tell more. They are logged at level DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from strandline.storage.errors import StrandlineError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=StrandlineError)


def plain(error: E) -> E:
    """The error without frames and causes: `raise plain(error) from None`."""
    log.debug("an error, as it came about", exc_info=error)
    return error.with_traceback(None)


def plainly(call: Callable[P, R]) -> Callable[P, R]:
    """A call of Spark's whose errors are plain."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except StrandlineError as error:
            raise plain(error) from None

    return called
