"""Arguments of `strandline status`, `topic`, `group`, `produce` and `consume`.

`--help` of every command shows examples; a command is imported when it runs, so that `strandline
--help` is fast.
"""

from __future__ import annotations

from strandline.broker.tools.commands.command_parser import Commands
from strandline.broker.tools.commands.group_arguments import add_group
from strandline.broker.tools.commands.record_arguments import add_consume, add_produce
from strandline.broker.tools.commands.status_arguments import add_status
from strandline.broker.tools.commands.topic_arguments import add_topic


def add_commands(commands: Commands) -> None:
    """Adds the five to the parser of `strandline`."""
    add_status(commands)
    add_topic(commands)
    add_group(commands)
    add_produce(commands)
    add_consume(commands)
