"""Read what a process shows at /metrics, as Prometheus does."""

from collections.abc import Iterator

import httpx
from prometheus_client import parser


class Scrape:
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
        """Return the value of the series with exactly these labels, or None."""
        return self._samples.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all series that have these labels, among others."""
        return sum(value for found, has, value in self if found == name and labels.items() <= has.items())


async def scrape(http: httpx.AsyncClient, *, token: str = "") -> Scrape:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)
