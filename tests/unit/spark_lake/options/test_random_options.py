"""Whatever stands in the options: a query that can be planned, or a refusal in words."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from strandline.spark_lake.options.given_options import OPTION_NAMES
from strandline.spark_lake.options.options import LakeOptions, ReadMode
from strandline.spark_lake.values.decoding_plan import plan_values
from strandline.storage.errors import InvalidConfig

TRIALS = 3000
NUMBERS = (None, True, 1.5, -1, -2, -3, 0, 5, 2**63 - 1, 2**63, 10**30, float("nan"))
NAMES = ("t", "u", "0", "1", "00", "-0", "+1", " 1", "\uff11", "")
TEXTS = ("", " ", "t", "t,u", ".*", "(", "[a", "true", "earliest", "latest", "5m", "1" * 30, "1e3")
PATHS = ("/tmp/x", "s3://b", "file:///x", "http://h:1", "key,offset", "value")
COLUMNS = (
    *("a", "b", "INT", "STRING", "STRUCT<", "ARRAY<", "MAP<", ">", ",", ":", "(", ")", "5", "`"),
    *("DECIMAL(", "TIMESTAMP", "DATE", "NOT NULL", "COMMENT 'x'"),
)
LOGICAL = ("date", "decimal", "timestamp-millis", "time-millis", "uuid", 5)


class RandomOptions:
    """Texts of every kind under every name; now and then with what goes with them."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def next(self) -> dict[str, str]:
        source = self._random
        given = {"path": "file:///none", "subscribe": "t"} if source.random() < 0.9 else {}
        # A registry would be asked.
        names = [name for name in OPTION_NAMES if not name.startswith("schemaRegistry")]
        for _ in range(source.randint(1, 3)):
            given[source.choice(names)] = self._text()
        if source.random() < 0.2:
            given |= {"valueFormat": "avro", "valueSchema": json.dumps(self._avro(0))}
        elif source.random() < 0.2:
            given |= {"valueFormat": "json", "valueSchema": self._columns()}
        return given

    def _text(self) -> str:
        match self._random.randrange(6):
            case 0 | 1:
                return json.dumps(self._json(0))
            case 2:
                return "".join(
                    chr(self._random.randrange(1, 0x300)) for _ in range(self._random.randrange(9))
                )
            case 3:
                return self._columns()
            case 4:
                return json.dumps(self._avro(0))
        return self._random.choice((*TEXTS, *PATHS))

    def _columns(self) -> str:
        return " ".join(self._random.choices(COLUMNS, k=self._random.randrange(1, 9)))

    def _json(self, depth: int) -> Any:
        kind = self._random.randrange(4) if depth < 4 else 0
        count = self._random.randrange(3)
        if kind == 0:
            return self._random.choice((*NUMBERS, *NAMES))
        if kind == 1:
            return [self._json(depth + 1) for _ in range(count)]
        return {name: self._json(depth + 1) for name in self._random.choices(NAMES, k=count)}

    def _avro(self, depth: int) -> Any:
        source = self._random
        if depth > 3 or source.random() < 0.4:
            return source.choice(["null", "int", "long", "string", "bytes", "other", None, 5, []])
        count = source.randrange(3)
        match source.randrange(6):
            case 0 | 1:
                fields = [{"name": n, "type": self._avro(depth + 1)} for n in "xyx"[: count + 1]]
                return {"type": "record", "name": source.choice(["A", "", 5]), "fields": fields}
            case 2:
                return {"type": "array", "items": self._avro(depth + 1)}
            case 3:
                return [self._avro(depth + 1) for _ in range(count + 1)]
            case 4:
                return {"type": "fixed", "name": "F", "size": source.choice([4, -1, "x", 10**12])}
        kind = source.choice(["int", "long", "bytes"])
        digits = {"precision": source.choice([5, 50, -1, "x"]), "scale": source.choice([0, 7, -2])}
        return {"type": kind, "logicalType": source.choice(LOGICAL), **digits}


@pytest.mark.slow
def test_random_options_are_understood_or_refused_in_words() -> None:
    source = random.Random(12)
    options = RandomOptions(source)
    understood = 0
    for _ in range(TRIALS):
        given = options.next()
        try:
            parsed = LakeOptions.parse(given, source.choice(list(ReadMode)))
            plan_values(parsed.values, parsed.selection)
            understood += 1
        except InvalidConfig as error:
            assert "option " in str(error) or "options " in str(error), given  # noqa: PT017
    assert understood > TRIALS / 30
