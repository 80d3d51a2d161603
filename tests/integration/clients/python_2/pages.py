import asyncio

import replicate
from given import client, models, said_all


async def create_many() -> list[str]:
    async with replicate.AsyncReplicate() as asynchronous:
        made: list[str] = []
        for _ in range(7):
            some = (asynchronous.predictions.create(version=models.captioner.version, input={}) for _ in range(15))
            made += [prediction.id for prediction in await asyncio.gather(*some)]
        return made


made = asyncio.run(create_many())
page = client.predictions.list()
assert (len(page.results), page.has_next_page()) == (100, True)
rest = page.get_next_page()
assert (len(rest.results), rest.has_next_page()) == (5, False)
assert sorted(prediction.id for prediction in [*page.results, *rest.results]) == sorted(made)
assert sorted(prediction.id for prediction in client.predictions.list()) == sorted(made)
said_all()
