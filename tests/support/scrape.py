"""Read what a process shows at /metrics, as Prometheus does."""

from collections.abc import Iterator

import httpx
from prometheus_client import parser

__all__ = ("Scrape", "scrape")


class Scrape:
    """Every sample of one answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __iter__(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for (name, labels), value in self._samples.items():
            yield name, dict(labels), value

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one series with exactly these labels; None where there is none."""
        return self._samples.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Of all series with these labels, whatever others they have."""
        return sum(value for found, has, value in self if found == name and labels.items() <= has.items())


async def scrape(http: httpx.AsyncClient, *, token: str = "") -> Scrape:
    """Ask for it, and want it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)
