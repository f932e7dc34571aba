"""Errors for users of Spark without stack frames before the message.

Spark shows the traceback of a Python source as text, with the message at its end. Our own errors
name the object and the remedy, so the frames and the chained errors of s3fs, which Spark would show
first, add nothing. They are logged at level DEBUG.
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
    """Returns the error without frames and causes: `raise plain(error) from None`."""
    log.debug("an error, as it came about", exc_info=error)
    return error.with_traceback(None)


def without_traceback(call: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a method that Spark calls: makes its errors plain."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except StrandlineError as error:
            raise plain(error) from None

    return called
