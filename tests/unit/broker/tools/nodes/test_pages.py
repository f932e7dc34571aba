"""A page of several brokers is read as one of each."""

from __future__ import annotations

from strandline.broker.tools.client.health import Page
from strandline.broker.tools.nodes.pages import by_node, check_controller, is_up

MERGED = """\
strandline_supervised_up{broker="controller"} 1
strandline_supervised_up{broker="1"} 1
strandline_supervised_up{broker="2"} 0
process_open_fds{broker="supervisor"} 3
process_open_fds{broker="1"} 12
strandline_log_directory_free_bytes{broker="1",directory="/d"} 77
kafka_controller_kafkacontroller_brokerregistrationstate{broker="1"} 30
kafka_controller_kafkacontroller_brokerregistrationstate{broker="2"} 10
kafka_controller_kafkacontroller_activebrokercount{broker="controller"} 1
kafka_controller_kafkacontroller_fencedbrokercount{broker="controller"} 1
kafka_controller_kafkacontroller_globalpartitioncount{broker="controller"} 12
kafka_controller_kafkacontroller_offlinepartitionscount{broker="controller"} 4
"""


def test_each_process_has_its_own_figures() -> None:
    parts = by_node(Page(MERGED))
    assert list(parts) == ["controller", "1", "2"]
    assert parts["1"].value("process_open_fds") == 12
    (folder,) = parts["1"].all("strandline_log_directory_free_bytes")
    assert folder.labels == {"directory": "/d"}
    assert [is_up(part) for part in parts.values()] == [True, True, False]


def test_the_page_of_one_broker_is_not_split() -> None:
    assert by_node(Page("process_open_fds 12\n")) == {}


def test_the_controller_tells_who_and_what_is_missing() -> None:
    troubles = [one.trouble for one in check_controller(by_node(Page(MERGED))["controller"])]
    assert troubles == ["1 broker fenced", "4 partitions without a leader"]
