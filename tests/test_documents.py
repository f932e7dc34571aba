"""What the documents say is held against the code: names, commands, links, numbers of decisions.

A page is read as its reader reads it. `code in ticks` that looks like a property, a metric, an
option, a file, a target of make or a command has to be one, and so has every command in a block.
Names of Kafka's clients, of Spark and of others are listed here.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts.docs import doc_pages
from scripts.docs.alerts_docs import alert_rules, runbook_command
from scripts.docs.cli_docs import parsers
from scripts.docs.log_docs import RUNBOOKS, Runbook, runbooks
from scripts.docs.log_messages import log_messages
from strandline import __version__
from strandline.broker.cli import make_parser
from strandline.broker.commands import docs_command
from strandline.broker.commands.docs_command import Finder
from strandline.broker.config.group_configs import GROUP_CONFIGS
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.config.unsupported_keys import IGNORED, REFUSED
from strandline.broker.telemetry.families import FAMILIES
from strandline.broker.tools.commands.options import CommandParser
from strandline.spark_lake.options.given_options import OPTION_NAMES
from strandline.storage.config.log_config import TOPIC_CONFIGS
from strandline.storage.crash_points import CRASH_POINTS
from tests.compat.judging import by_hand, notes
from tests.support.page_blocks import (
    LOOKED_AT,
    NOT_OURS,
    RUN,
    blocks_of,
    every_block,
    pages,
)

ROOT = Path(__file__).resolve().parent.parent

# Of clients, and of what is asked for by others' names.
FOREIGN_PROPERTIES = {
    *("group.id", "group.instance.id", "group.protocol", "linger.ms", "max.poll.interval.ms"),
    *("check.crcs", "security.protocol", "http.client", "kafka.protocol"),
    *("fetch.min.bytes", "fetch.max.wait.ms", "transactional.id", "isolation.level"),
    *("processing.guarantee", "execution.checkpointing.interval"),
    *("exactly.once.source.support", "exactly.once.support", "offset.lag.max"),
    "max.in.flight.requests.per.connection",
}
FOREIGN_FAMILIES = ("spark.",)


def markdown_files() -> list[Path]:
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "bench" / "notes").glob("*.md")),
        *sorted((ROOT / "localstack").glob("*.md")),
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- names -----------------------------------------------------------------------------------


def in_ticks() -> Iterator[tuple[Path, str]]:
    """Every `code in ticks` of every page, outside of blocks."""
    for page in markdown_files():
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for text in re.findall(r"`([^`\n]+)`", prose):
            yield page, text


@cache
def product_text() -> str:
    folders = ("broker", "storage", "retention", "spark_lake")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return "\n".join(path.read_text() for path in files if path.suffix in (".py", ".scala"))


def is_said_in_code(word: str) -> bool:
    """Files, modules and columns look like properties and metrics too."""
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", product_text()) is not None


def is_property(key: str) -> bool:
    without_listener = re.sub(r"^listener\.name\.(<name>|\w+)\.(\w+\.)?", "", key)
    return (
        key in BROKER_CONFIGS
        or key in TOPIC_CONFIGS
        or key in GROUP_CONFIGS
        or key in FOREIGN_PROPERTIES
        or key in OPTION_NAMES
        or key.startswith(FOREIGN_FAMILIES)
        or without_listener in BROKER_CONFIGS
        or any(
            key in config.synonyms for config in (*BROKER_CONFIGS.values(), *TOPIC_CONFIGS.values())
        )
        or any(entry.matches(key) or entry.pattern == key for entry in (*IGNORED, *REFUSED))
    )


def test_properties_that_documents_name_exist() -> None:
    looks_like_one = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)+")
    endings = re.compile(r".*\.(py|md|json|toml|log|meta|txt|lock|yaml|properties|sh|xml|so|ipynb)")
    modules = re.compile(r"strandline\.(broker|storage|spark_lake)(\..*)?")
    unknown = []
    for page, text in in_ticks():
        key = re.split(r"[=\s]", text)[0]
        if not looks_like_one.fullmatch(key) or endings.fullmatch(key) or modules.fullmatch(key):
            continue
        if key not in CRASH_POINTS and not is_property(key) and not is_said_in_code(key):
            unknown.append(f"{name(page)}: {key}")
    assert unknown == []


def test_metrics_that_documents_name_exist() -> None:
    suffixes = ("", "_total", "_count", "_sum", "_bucket")
    known = {f"{family}{suffix}" for family in FAMILIES for suffix in suffixes}
    # `strandline_cold_*` names all that begin so.
    known |= {family[: at + 1] for family in FAMILIES for at, c in enumerate(family) if c == "_"}
    unknown = [
        f"{name(page)}: {metric}"
        for page, text in in_ticks()
        for metric in re.findall(r"(?<![.\w])(?:kafka|strandline|process)_[a-z0-9_]+", text)
        if metric not in known and not is_said_in_code(metric)
    ]
    assert unknown == []


def test_files_that_documents_name_exist() -> None:
    """With the folder in front: a path is read from the root, or from the folder of the page."""
    tops = {path.name for path in ROOT.iterdir()} - {"demo-data", "bench-data"}
    missing = []
    for page, text in in_ticks():
        path = text.split()[0]
        top = path.partition("/")[0]
        if "/" not in path or top not in tops or not re.fullmatch(r"[\w./*-]+", path):
            continue
        if not list(ROOT.glob(path.strip("/"))) and "/." not in path:
            missing.append(f"{name(page)}: {path}")
    assert missing == []


def test_tests_that_tables_name_are_in_the_files_beside_them() -> None:
    missing = [
        f"{name(page)}: {test}"
        for page in pages()
        for row in re.findall(r"^\|.*", page.read_text(), re.MULTILINE)
        for test in re.findall(r"`(test_\w+)`", row)
        if not any(
            f"def {test}(" in (ROOT / file).read_text()
            for file in re.findall(r"`(tests/[\w/]+\.py)`", row)
        )
    ]
    assert missing == []


def test_modules_that_comments_name_exist() -> None:
    """`see segment.py` leads nowhere once that is renamed."""
    folders = ("broker", "storage", "retention", "spark_lake", "tests", "bench", "demo", "scripts")
    known = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"(?<![\w/.*])(\w+\.py)\b", product_text()))
    assert named - known == set()


def targets() -> list[str]:
    """What `make help` and `make help-more` list, in their order."""
    files = [ROOT / "Makefile", *sorted((ROOT / "make").glob("*.mk"))]
    return [
        target
        for file in files
        for target in re.findall(r"^([a-z-]+):.*## ", file.read_text(), re.MULTILINE)
    ]


def test_targets_of_make_that_documents_name_are_listed_by_make() -> None:
    helped = set(targets())
    unknown = [
        f"{name(page)}: make {target}"
        for page, text in in_ticks()
        for target in re.findall(r"^make ([a-z-]+)", text)
        if target not in helped
    ]
    assert unknown == []


def test_the_page_of_recipes_says_how_long_each_target_takes() -> None:
    page = (ROOT / "docs" / "contributing" / "recipes.md").read_text()
    assert re.findall(r"^\| `make ([a-z-]+)` \|", page, re.MULTILINE) == targets()


# What the system, Python or Java says, not we.
SYSTEMS_WORDS = {
    *("Address already in use", "No space left on device"),
    *("date value out of range", "getSubject is not supported"),
}


def sayings() -> Iterator[tuple[Path, str]]:
    """Runs of three words and more in the first cells of tables of what the log, or Spark, says."""
    head = re.compile(r"^\| what (?:the log|it) says \|.*\n\|.*\n((?:\|.*\n)+)", re.MULTILINE)
    for page in markdown_files():
        for row in "".join(head.findall(page.read_text())).splitlines():
            for text in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
                for run in re.split(r"\.\.\.|\w+=|[:;,]|\d+", text):
                    if run.strip().count(" ") >= 2 and run.strip() not in SYSTEMS_WORDS:
                        yield page, run.strip()


def test_what_the_log_says_in_documents_is_what_it_says() -> None:
    joined = re.sub(r'"\s*\n\s*f?"', "", product_text())
    said = list(sayings())
    assert [f"{name(page)}: {run}" for page, run in said if run not in joined] == []
    assert len(said) > 10, "the tables are not found any more"


def test_the_pages_table_of_lake_options_has_all_of_them() -> None:
    page = (ROOT / "docs" / "reference" / "lake-options.md").read_text()
    options = page[page.index("\n## Options\n") :]
    rows = [line.split("|")[1] for line in options.splitlines() if line.startswith("| `")]
    assert {option for row in rows for option in re.findall(r"`([^`]+)`", row)} == set(OPTION_NAMES)


def test_decisions_that_code_refers_to_exist() -> None:
    """The name of the page may follow the number."""
    numbers = {page.name[:4] for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    unknown = []
    for folder in ("broker", "storage", "retention", "spark_lake", "tests", "bench", "demo"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            said = re.findall(r"docs/decisions(?:/|,\s+)(\d+)(?: and (\d+))?", path.read_text())
            given = {number for numbers_said in said for number in numbers_said if number}
            unknown += [
                f"{name(path)}: {number}" for number in given if number.zfill(4) not in numbers
            ]
    assert unknown == []


# --- runbooks --------------------------------------------------------------------------------

PARTS_OF_A_RUNBOOK = ("Symptom", "Impact", "Check", "Fix", "Verify")


def test_every_message_at_warning_or_error_has_one_runbook() -> None:
    """A new message wants a line `* Log:` in a page of docs/runbooks, then `make docs`."""
    named = sorted(text for runbook in runbooks() for text in runbook.messages)
    assert named == sorted({message.text for message in log_messages()})


def test_every_alert_has_a_runbook() -> None:
    """It has the alert's name, which is what a page at night says, and its metric."""
    rules = {rule.name: rule for rule in alert_rules()}
    named = [alert for runbook in runbooks() for alert in runbook.alerts]
    assert sorted(named) == sorted(rules)
    finder = Finder(docs_command.pages())
    for runbook in runbooks():
        for alert, metric in runbook.alerts.items():
            assert rules[alert].annotations["runbook"] == runbook_command(runbook), alert
            assert metric in rules[alert].expression, alert
            assert leads_to(finder, alert, runbook), alert


# A reader looks at the first lines of a list.
LINES_LOOKED_AT = 4


def leads_to(finder: Finder, words: str, runbook: Runbook) -> bool:
    """Whether `strandline docs` has the runbook at the top for the words."""
    return f"runbooks/{runbook.page}#{runbook.anchor}" in finder.places(words)[:LINES_LOOKED_AT]


def test_the_text_of_a_log_line_leads_to_its_runbook() -> None:
    finder = Finder(docs_command.pages())
    wrong = [
        message
        for runbook in runbooks()
        for message in runbook.messages
        if not leads_to(finder, message.replace("...", " "), runbook)
    ]
    assert wrong == []


def test_every_runbook_has_the_same_parts_and_commands() -> None:
    wrong = []
    for runbook in runbooks():
        parts = re.findall(r"^\*\*(\w+)\.\*\*", runbook.text, re.MULTILINE)
        is_runbook = bool(runbook.messages or runbook.alerts or parts)
        if is_runbook and (tuple(parts) != PARTS_OF_A_RUNBOOK or "```bash" not in runbook.text):
            wrong.append(f"{runbook.page}: {runbook.heading}")
    assert wrong == []


def test_every_fix_of_a_runbook_has_a_command_or_says_why_there_is_none() -> None:
    bare = [
        f"{runbook.page}: {runbook.heading}"
        for runbook in runbooks()
        for fix in re.findall(
            r"^\*\*Fix\.\*\*(.*?)^\*\*Verify", runbook.text, re.MULTILINE | re.DOTALL
        )
        if "```bash" not in fix and not re.search(r"\bcommands?\b", fix)
    ]
    assert bare == []


def test_every_page_opens_with_its_readers() -> None:
    """Runbooks and single decisions have those of their lists."""
    docs = ROOT / "docs"
    pages = [
        page
        for page in sorted(docs.rglob("*.md"))
        if page.parent not in (docs, RUNBOOKS) and not re.match(r"\d{4}-", page.name)
    ]
    opening = re.compile(r"# .*\n\n(?:<!--.*-->\n\n)?For ")
    assert [name(page) for page in pages if not opening.match(page.read_text())] == []
    assert len(pages) > 50, "the pages are not found any more"


def test_every_check_of_a_runbook_says_what_to_look_for() -> None:
    """Text stands between the part's name and its first command."""
    bare = [
        f"{runbook.page}: {runbook.heading}: {part}"
        for runbook in runbooks()
        for part in re.findall(
            r"^\*\*(Check|Verify)\.\*\*\s*^(?:```|<!--|\*Not run)", runbook.text, re.MULTILINE
        )
    ]
    assert bare == []


# A page in a text of the product: as a path in a checkout, or as the command that prints it.
PATH_OF_A_PAGE = re.compile(r"(?<![\w/`])docs/[a-z][\w/.-]*")
COMMAND_OF_A_PAGE = re.compile(r"strandline docs\s+([a-z-]+/[\w#/-]+)")


def texts_of_the_product() -> Iterator[tuple[Path, str]]:
    """Every text but docstrings; of one with values in it, the words between them."""
    for folder in ("broker", "storage", "retention", "spark_lake"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and id(node) not in alone:
                    yield path, text


def test_messages_name_pages_by_the_command_that_prints_them() -> None:
    """A reader of the wheel has no checkout."""
    found = list(texts_of_the_product())
    paths = [f"{name(path)}: {one}" for path, text in found for one in PATH_OF_A_PAGE.findall(text)]
    assert paths == []
    pages_asked = [(path, one) for path, text in found for one in COMMAND_OF_A_PAGE.findall(text)]
    finder = Finder(docs_command.pages())
    for path, asked in pages_asked:
        assert finder.find(asked), f"{name(path)}: {asked}"
    assert len(pages_asked) > 9, "the texts are not found any more"


# --- versions --------------------------------------------------------------------------------


def test_which_python_java_and_spark_stands_on_one_page() -> None:
    """The README too says which Python it takes; a report says with what it measured."""
    version = re.compile(
        r"\b(?:Python|Java|(?:Py)?Spark)(?: from| is| version)?[ :=]+\d[\d.]*"
        r"|\bpython3\.\d+|--python \d|\bopenjdk-\d+",
        re.IGNORECASE,
    )
    # "Streams need 4.2": on a page about Spark, a version needs no name before it.
    bare = re.compile(r"(?<![\d.])[34]\.\d+(?:\.\d+)?(?![\d.])")
    docs = ROOT / "docs"
    folders = ("tutorials", "how-to", "runbooks", "explanation")
    pages = [page for folder in folders for page in sorted((docs / folder).glob("*.md"))]
    pages = [*pages, docs / "reference" / "lake-options.md"]
    said = {
        name(page): found
        for page in pages
        if page.name != "performance.md"
        and (
            found := version.findall(page.read_text())
            + (bare.findall(page.read_text()) if "spark" in page.name else [])
        )
    }
    assert said == {}


# --- commands --------------------------------------------------------------------------------


def commands_in(text: str) -> list[str]:
    """What a shell would start as `strandline`: of pipes each part, without remarks."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = []
    for line in joined.splitlines():
        # A remark stands behind a #, so that the whole line can be pasted.
        words = re.sub(r"(?<=\S)\s+#.*$", "", line.strip().removeprefix("$ "))
        parts = [part.strip() for part in re.split(r" \| ", words)]
        found += [part for part in parts if re.match(r"(\.venv/bin/)?strandline (?!ready:)", part)]
    return found


@cache
def parser_of_all() -> CommandParser:
    return make_parser("")


def is_taken(command: str) -> bool:
    words = shlex.split(re.sub(r"[\[\]]", "", command))[1:]
    try:
        parser_of_all().parse_args(words)
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("parser", [*parsers(make_parser(""))], ids=lambda parser: parser.prog)
def test_every_command_teaches_with_examples_that_it_takes(parser: CommandParser) -> None:
    examples = commands_in(parser.epilog or "")
    assert any(f"{example} ".startswith(f"{parser.prog} ") for example in examples), examples
    assert [example for example in examples if not is_taken(example)] == []


def test_commands_in_documents_are_taken() -> None:
    wrong = []
    count = 0
    for page in markdown_files():
        for block in blocks_of(page):
            text = block.text if block.language == "bash" else ""
            for command in commands_in(re.sub(r" {2,}(?=--|serve|restore)", " ", text)):
                count += 1
                if not is_taken(command):
                    wrong.append(f"{name(page)}: {command}")
    assert wrong == []
    assert count > 20, "the blocks are not found any more"


def test_every_block_of_a_page_says_its_language_and_is_run_or_says_why_not() -> None:
    """tests/system/documents runs them, and tests/spark those of Spark."""
    found = list(every_block())
    unknown = [block.place for block in found if block.language not in RUN | NOT_OURS | LOOKED_AT]
    # What nothing of ours can run.
    unmarked = [block.place for block in found if block.language in NOT_OURS and not block.not_run]
    fences = {page: len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) for page in pages()}
    odd = [
        name(page)
        for page, count in fences.items()
        if count != 2 * len([block for block in found if block.page == page])
    ]
    assert (unknown, unmarked, odd) == ([], [], [])
    assert len(found) > 100, "the blocks are not found any more"


def test_a_reader_sees_which_blocks_nothing_of_ours_runs() -> None:
    """A hidden reason names what runs the block; contributors read the code."""
    unseen = [
        f"{block.place}: {block.not_run}"
        for block in every_block()
        if block.page.parent.parent == ROOT / "docs" and block.page.parent.name != "contributing"
        if block.is_hidden and not re.search(r"`make [a-z-]+`|\btests/", block.not_run)
    ]
    assert unseen == []


def test_commands_and_options_in_ticks_exist() -> None:
    by_prog = {parser.prog: parser for parser in parsers(make_parser(""))}
    wrong = []
    for page, text in in_ticks():
        words = text.split()
        if words[0] != "strandline" or words[1:2] in ([], ["ready:"]):
            continue
        prog = max((prog for prog in by_prog if f"{text} ".startswith(f"{prog} ")), key=len)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = by_prog[prog].option_names
        if prog == "strandline" and words[1] != "--version":
            wrong.append(f"{name(page)}: {text}")
        wrong += [f"{name(page)}: {prog} {option}" for option in options if option not in known]
    assert wrong == []


# --- tables ----------------------------------------------------------------------------------


def tables(page: Path) -> Iterator[list[str]]:
    """The rows of each table, with those of its head; a table in a block is none."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^ *\|.*\n?)+", prose, re.MULTILINE):
        yield table.splitlines()


def cells(row: str) -> int:
    """As a forge counts them: a pipe ends a cell in `code` too, unless a backslash is before it."""
    return len(re.findall(r"(?<!\\)\|", row.strip().removeprefix("|").removesuffix("|"))) + 1


WORDS_OF_A_CELL_MAX = 40


def test_no_cell_of_a_table_is_long() -> None:
    """What has more to say is a list below the table; `code in ticks` counts as a word."""
    long = [
        f"{name(page)}: {cell.strip()[:60]}"
        for page in markdown_files()
        for rows in tables(page)
        for row in rows
        for cell in re.split(r"(?<!\\)\|", row)
        if len(re.sub(r"`[^`]*`", "code", cell).split()) > WORDS_OF_A_CELL_MAX
    ]
    assert long == []


def test_rows_of_tables_have_as_many_cells_as_their_head() -> None:
    """Of a longer one, the cells that are too many are not shown."""
    every = [(page, rows) for page in markdown_files() for rows in tables(page)]
    wrong = [
        f"{name(page)}: {row[:60]}"
        for page, rows in every
        for row in rows
        if cells(row) != cells(rows[0]) or not row.rstrip().endswith("|")
    ]
    assert wrong == []
    assert len(every) > 40, "the tables are not found any more"


# --- what is installed -----------------------------------------------------------------------


def joined_lines(path: Path) -> list[str]:
    """What goes on behind a backslash, or in the next piece of a text, is one line."""
    text = path.read_text(errors="replace")
    return re.sub(r'\\\n\s*|"\s*\n\s*f?"', " ", text).splitlines()


def test_nothing_of_our_name_is_installed_from_a_package_index() -> None:
    """It is not ours there: whoever takes the name would be given machines and passwords.

    A wheel has its file's name, and a checkout is a path.
    """
    from_index = re.compile(
        r"\b(?:pip3?|uv|pipx|uvx|conda|poetry|pdm)\b[^\n#.,]{0,40}\b(?:install|add|run|tool)\b[^\n#]{0,80}"
        r"(?<![\w./-])strandline(?![\w./-])"
    )
    suffixes = {".py", ".md", ".ipynb", ".sh", ".toml", ".yml", ".yaml", ".scala", ".java", ".xml"}
    folders = ("broker", "storage", "retention", "spark_lake", "docs", "demo", "bench", "scripts")
    files = [
        *markdown_files(),
        *(path for path in ROOT.iterdir() if path.is_file()),
        *(path for folder in (*folders, "localstack") for path in (ROOT / folder).rglob("*")),
    ]
    hints = [
        f"{name(path)}: {line.strip()}"
        for path in files
        if path.suffix in suffixes or (path.is_file() and not path.suffix)
        for line in joined_lines(path)
        if from_index.search(line)
    ]
    assert hints == []
    assert from_index.search("pip install 'strandline[lake]' on the driver")
    assert from_index.search("python3 -m pip install -U strandline")
    assert not from_index.search("pip install 'dist/strandline-0.1.0-py3-none-any.whl[lake]'")


def test_the_pages_on_kubernetes_name_the_image_that_the_chart_runs() -> None:
    """The pod that restores has no chart that would give it the tag."""
    chart = (ROOT / "deploy" / "helm" / "strandline" / "Chart.yaml").read_text()
    assert f"\nappVersion: {__version__}\n" in chart
    how_to = ROOT / "docs" / "how-to"
    assert f"tag it `{__version__}`" in (how_to / "kubernetes.md").read_text()
    images = re.findall(r"^ *image: (\S+)$", (how_to / "restore.md").read_text(), re.MULTILINE)
    assert images == [f"registry.example.org/strandline:{__version__}"]


def test_the_page_on_compatibility_has_what_no_run_finds_out() -> None:
    """The next run writes it again, with these lines."""
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    assert "\n".join((*notes(), *by_hand())) in page


# --- links and pages -------------------------------------------------------------------------


def test_nothing_stands_twice_in_the_documents() -> None:
    """Paragraphs, items and rows; what is generated from tables may repeat itself."""
    places: dict[str, list[str]] = {}
    for page in markdown_files():
        # A runbook is read alone, at night: it repeats what it needs.
        if page.parent == RUNBOOKS or name(page).removeprefix("docs/") in doc_pages.PAGES:
            continue
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in prose.splitlines():
            if len(line) > 70 and not re.fullmatch(r"[| :-]+", line):
                places.setdefault(line.strip(), []).append(name(page))
    assert {line[:60]: where for line, where in places.items() if len(where) > 1} == {}


def anchors(path: Path) -> list[str]:
    """The anchors that a forge gives to the headings of a page, in order."""
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return [
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    ]


def test_no_page_has_an_anchor_twice() -> None:
    """A link leads to the first of them; `strandline docs` prints all, one inside the other."""
    twice = [
        f"{name(page)}#{anchor}"
        for page in markdown_files()
        for anchor, count in Counter(anchors(page)).items()
        if count > 1
    ]
    assert twice == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in markdown_files():
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            linked = (page.parent / file).resolve() if file else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{name(page)} -> {target}")
    assert broken == []


def in_order(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            yield from (page for below in entry.values() for page in in_order(below))


def test_the_site_orders_every_page() -> None:
    """Pages that are not in the order cannot be found in the site's navigation."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    # The front page of the site is README.md.
    names = [name(page).removesuffix(".md") for page in markdown_files()]
    wanted = ["index.md" if one == "README" else f"{one}.md" for one in names]
    assert sorted(in_order(project["nav"])) == sorted(wanted)


@pytest.mark.parametrize("page", doc_pages.PAGES)
def test_pages_made_of_tables_are_up_to_date(page: str) -> None:
    """When it fails: `make docs`."""
    assert (ROOT / "docs" / page).read_text() == doc_pages.PAGES[page]()


def test_pages_are_written_into_the_folder_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doc_pages.main([str(tmp_path)]) == 0
    for page, render in doc_pages.PAGES.items():
        assert (tmp_path / page).read_text() == render()
    assert doc_pages.main([]) == 2
    assert "usage:" in capsys.readouterr().err


def test_decisions_are_numbered_without_gaps_listed_and_say_what_would_change_them() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    listed = re.findall(
        r"^\| \[\d+\]\(([^)]+)\)", (ROOT / "docs/decisions/README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == [page.name for page in pages]
    for page in pages:
        headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
        wanted = ["Context", "Choice", "What it costs", "What would change our mind"]
        assert [heading for heading in headings if heading in wanted] == wanted, page.name
