from __future__ import annotations

from rich.table import Table

from bench.rows import METRICS


def print_tables(rows, results, console):
    table = Table()
    for c in ("row", "metric", "strandline", "Kafka", "ratio", "goal"):
        table.add_column(c)
    for row in rows:
        for metric, about in METRICS.items():
            cells = []
            for peer in ("strandline", "Kafka", "limit"):
                s = results.spread(row.name, peer, metric)
                if s:
                    cells.append(
                        f"{s.median:.{about.digits}f} ({s.least:.{about.digits}f}-{s.most:.{about.digits}f})"
                    )
            if not cells:
                continue
            ratio = results.ratio(row.name, metric)
            goal = row.goals.get(metric)
            table.add_row(
                row.name,
                about.title,
                cells[0],
                cells[1] if len(cells) > 1 else "",
                f"{ratio:.2f}" if ratio else "",
                (f"{goal} " + ("met" if goal.is_met(ratio) else "NOT")) if goal and ratio else "",
            )
    console.print(table)


def write_page(docs, results, size):
    pass
