from api.predictions.streams import Address, read_address
from director.core.ids import PredictionId, new_ticket

ID = PredictionId("06hhgq2g02t40aqhd9gyx4kz3j")


def test_an_address_is_read_back_and_opened_by_its_ticket_alone() -> None:
    ticket, other = new_ticket(), new_ticket()
    address = read_address(f"{ID}{ticket}")
    assert address == Address(ID, ticket)
    assert address.opens(ticket)
    assert not address.opens(other)
    assert not address.opens("")


def test_no_two_tickets_are_alike() -> None:
    assert len({new_ticket() for _ in range(1_000)}) == 1_000
    assert {len(new_ticket()) for _ in range(100)} == {26}
