"""Maps kcat and kafka-*.sh flags to ours."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

_ACTION = "the action is a word without dashes"
_NAME = "give the name alone"

# Flags that no command of ours has, or not every one.
_SAID_HERE: Mapping[str, str] = {
    "--list": f"{_ACTION}: list",
    "--describe": f"{_ACTION}: describe",
    "--create": f"{_ACTION}: create",
    "--alter": f"{_ACTION}: alter",
    "--delete": f"{_ACTION}: delete",
    "--reset-offsets": f"{_ACTION}: reset-offsets",
    "--topic": _NAME,
    "-t": _NAME,
    "--group": _NAME,
    "--from-beginning": "--from start",
    "--offset": "--from OFFSET",
    "-o": "--from start, end or an offset",
    "--timeout-ms": "--timeout 10s",
    "--exit": "--until-end",
    "-e": "--until-end",
    "-c": "--max-messages N",
    "--add-config": "--config KEY=VALUE",
    "--broker-list": "--bootstrap-server HOST:PORT",
    "--property": "-X KEY=VALUE",
    "--producer-property": "-X KEY=VALUE",
    "--consumer-property": "-X KEY=VALUE",
}


def translate_flags(given: Sequence[str], known: Container[str]) -> str:
    """Returns `for --from-beginning: --from start`, for each flag that a command does not know.

    Empty if there is none.
    """
    words = dict.fromkeys(word.partition("=")[0] for word in given)
    return "; ".join(
        f"for {word}: {_SAID_HERE[word]}"
        for word in words
        if word in _SAID_HERE and word not in known
    )
