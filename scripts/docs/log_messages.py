"""Every message that the product logs at WARNING or ERROR, found in its source.

    log.warning("text")                           the text
    quiet_log.say(logging.ERROR, event, ...)      the texts that `event` can have: the names of the
                                                  function and the module, and its callers' texts
    f"topic of the {content} not created"         topic of the ... not created

Invariant: each call at one of the two levels yields its texts. One whose text cannot be found is an
error, so that no message is without a runbook because it was written in a new way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker", "storage", "retention", "spark_lake")
LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "ERROR"}
# Names of loggers; other objects have methods of these names too.
LOGGERS = {"log", "self._log"}
# A name may stand for a name, as often as this.
NAMES_MAX = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LogMessage:
    """A text, its level, and the logger that writes it."""

    text: str
    level: str
    logger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    logger: str
    tree: ast.Module
    # The function around each node; None at the top of the module.
    function_of: dict[ast.AST, Function | None]


@cache
def log_messages() -> tuple[LogMessage, ...]:
    """Returns all messages in the order of their texts.

    Raises:
        ValueError: the text of a call cannot be found; the error names the file and the line.
    """
    found = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found |= set(_messages_of(_module(path)))
    return tuple(sorted(found))


def _module(path: Path) -> _Module:
    tree = ast.parse(path.read_text(), filename=str(path))
    function_of: dict[ast.AST, Function | None] = {}

    def visit(node: ast.AST, function: Function | None) -> None:
        function_of[node] = function
        inside = node if isinstance(node, Function) else function
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, None)
    logger = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return _Module(logger=logger, tree=tree, function_of=function_of)


def _messages_of(module: _Module) -> Iterator[LogMessage]:
    for call in ast.walk(module.tree):
        level, event = _level_and_event(module, call) if isinstance(call, ast.Call) else ("", None)
        if level and event is not None:
            for text in _texts(module, call, event, NAMES_MAX):
                yield LogMessage(text=text, level=level, logger=module.logger)


def _level_and_event(module: _Module, call: ast.Call) -> tuple[str, ast.expr | None]:
    """The level and the expression of the text; "" if the call logs at no such level."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in LEVELS:
        is_logger = ast.unparse(function.value) in LOGGERS
        return (LEVELS[function.attr], call.args[0]) if is_logger else ("", None)
    for position, argument in enumerate(call.args):
        level = _level(module, call, argument)
        if level:
            return level, call.args[position + 1] if position + 1 < len(call.args) else None
    for keyword in call.keywords:
        level = _level(module, call, keyword.value) if keyword.arg == "level" else ""
        if level and call.args:
            return level, call.args[0]
    return "", None


def _level(module: _Module, call: ast.Call, expression: ast.expr) -> str:
    """The level that an argument names, also as one of two, or by a name of the function."""
    values = [expression]
    if isinstance(expression, ast.Name) and expression.id == "level":
        values = list(_assigned(module.function_of[call], expression.id))
    said = " ".join(ast.unparse(value) for value in values)
    return next((level for level in ("ERROR", "WARNING") if f"logging.{level}" in said), "")


def _texts(module: _Module, call: ast.AST, event: ast.expr, names_left: int) -> Iterator[str]:
    if isinstance(event, ast.Constant):
        yield str(event.value).replace("%s", "...")
    elif isinstance(event, ast.JoinedStr):
        parts = (str(p.value) if isinstance(p, ast.Constant) else "..." for p in event.values)
        yield "".join(parts)
    elif isinstance(event, ast.IfExp):
        yield from _texts(module, call, event.body, names_left)
        yield from _texts(module, call, event.orelse, names_left)
    else:
        name = event.id if isinstance(event, ast.Name) and names_left else ""
        meant = list(_meant_by(module, call, name))
        if not meant:
            raise ValueError(f"{module.logger}:{event.lineno} logs a text that cannot be found")
        for place, given in meant:
            yield from _texts(module, place, given, names_left - 1)


def _meant_by(module: _Module, call: ast.AST, name: str) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What a name stands for at a call, each with the place where that is said."""
    function = module.function_of[call]
    for given in (*_assigned(function, name), *_assigned(module.tree, name)):
        yield call, given
    yield from _given(module, function, name)


def _assigned(scope: Function | ast.Module | None, name: str) -> Iterator[ast.expr]:
    """What a function, or the top of a module, assigns to a name."""
    if scope is None:
        return
    for node in ast.walk(scope) if isinstance(scope, Function) else scope.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _of_target(target, node.value, name)


def _of_target(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """Of `a, b = (1, 2) if c else (3, 4)`: 1 and 3 for `a`."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.IfExp):
        yield from _of_target(target, value.body, name)
        yield from _of_target(target, value.orelse, name)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its_value in zip(target.elts, value.elts, strict=True):
            yield from _of_target(one, its_value, name)


def _given(
    module: _Module, function: Function | None, name: str
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls in the module that pass a parameter of the function, with what they pass."""
    names = [] if function is None else [argument.arg for argument in function.args.args]
    if function is None or name not in names:
        return
    position = names.index(name) - (names[0] == "self")
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or _name_of(call.func) != function.name:
            continue
        keywords = [keyword.value for keyword in call.keywords if keyword.arg == name]
        for given in (*keywords, *call.args[position : position + 1]):
            yield call, given


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
