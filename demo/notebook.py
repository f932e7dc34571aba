"""`python -m demo.notebook`: runs docs/tutorials/lake.ipynb and keeps what cells print and draw.

    cell -> its statements are run -> value of the last expression, prints, figures -> outputs

The notebook asks the demo's bucket, whose S3 server has to run. Whoever reads it on a page that
shows notebooks sees the answers then, without running anything. Each output says of which source it
is (`ran`), so that a test finds a cell that was changed and not run again. No Jupyter is needed.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "lake.ipynb"
# Enough for a page, and small in a repository.
DOTS_PER_INCH = 72

Json = dict[str, Any]


def main() -> None:
    """Writes the notebook anew; a cell that fails ends it, and changes nothing."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    notebook = json.loads(path.read_text())
    run(notebook)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def run(notebook: Json) -> dict[str, Any]:
    """Runs every cell in order and sets its outputs; the names that are left at the end."""
    import matplotlib as mpl

    mpl.use("Agg")
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        source = source_of(cell)
        cell["outputs"] = _outputs(source, names, number)
        cell["execution_count"] = number
        cell["metadata"] = {"ran": fingerprint(source)}
    return names


def source_of(cell: Json) -> str:
    """What the cell says."""
    return "".join(cell["source"])


def fingerprint(source: str) -> str:
    """Tells whether outputs are those of this source."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _outputs(source: str, names: dict[str, Any], number: int) -> list[Json]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _run_cell(source, names)
    outputs: list[Json] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
        )
    if value is not None:
        shown = {"text/plain": _lines(repr(value))}
        if (as_html := getattr(value, "_repr_html_", None)) is not None:
            shown = {"text/html": _lines(as_html()), **shown}
        outputs.append(
            {
                "data": shown,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs + [
        {"data": {"image/png": png}, "metadata": {}, "output_type": "display_data"}
        for png in _figures()
    ]


def _run_cell(source: str, names: dict[str, Any]) -> object:
    """The value of the last statement, if it is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), names)  # the notebook is ours
        return None
    tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), names)
    value: object = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return value


def _figures() -> list[str]:
    import matplotlib.pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        drawn.append(base64.b64encode(buffer.getvalue()).decode())
    plt.close("all")
    return drawn


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    main()
