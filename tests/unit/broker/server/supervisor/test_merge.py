"""One page of the metrics of several processes."""

from __future__ import annotations

import prometheus_client.parser

from strandline.broker.server.supervisor.merge import labelled, merge_pages

FIRST = """\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{request="Fetch"} 7
# HELP wait_ms Waits.
# TYPE wait_ms summary
wait_ms{quantile="0.5"} 1
wait_ms_sum 12
wait_ms_count 3
"""
SECOND = """\
# HELP threads Threads.
# TYPE threads gauge
threads 4
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{request="Fetch"} 2
"""
CONTROLLER = """\
# HELP state State of a broker.
# TYPE state gauge
state{broker="2"} 30
threads 5
# EOF
"""


def merged(**pages: str) -> str:
    return "".join(merge_pages({name.strip("_"): page for name, page in pages.items()}))


def test_each_family_is_there_once_with_the_samples_of_all() -> None:
    page = merged(_1=FIRST, _2=SECOND)
    families = list(prometheus_client.parser.text_string_to_metric_families(page))
    assert [one.name for one in families] == ["requests", "wait_ms", "threads"]
    assert [(one.labels["broker"], one.value) for one in families[0].samples] == [
        ("1", 7),
        ("2", 2),
    ]
    assert page.count("# TYPE requests_total") == 1


def test_a_sample_about_a_broker_keeps_it() -> None:
    page = merged(controller=CONTROLLER)
    assert 'state{broker="2"} 30\n' in page
    assert 'threads{broker="controller"} 5\n' in page
    assert "EOF" not in page


def test_values_with_anything_in_them_stay() -> None:
    line = 'down{reason="a b} c, broker is \\"x\\""} 1'
    assert labelled(line, "3") == 'down{broker="3",reason="a b} c, broker is \\"x\\""} 1'


def test_a_large_page_comes_in_pieces() -> None:
    lines = "".join(f'size{{topic="t{number}"}} {number}\n' for number in range(1000))
    pieces = list(merge_pages({"1": f"# HELP size Bytes.\n# TYPE size gauge\n{lines}"}))
    assert max(piece.count("\n") for piece in pieces) <= 51
    assert "".join(pieces).count("\n") == 1002
