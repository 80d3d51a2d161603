import base64
import time
from datetime import UTC, datetime

import pytest
from replicate.webhook import Webhooks, WebhookSigningSecret
from standardwebhooks import Webhook, WebhookVerificationError

from director.core.webhooks import new_secret, sign, sign_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = '{"status":"succeeded","output":["ü","\\n"]}'.encode()


def test_a_known_signature_never_changes() -> None:
    # a vector that the standard's reference libraries share
    signature = sign(
        [SECRET], message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp_s=1614265330, body=b'{"test": 2432232314}'
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("size", [24, 32, 64])
def test_the_standard_library_signs_the_same(size: int) -> None:
    secret = "whsec_" + base64.b64encode(bytes(range(size))).decode()
    at = datetime.fromtimestamp(1_700_000_000, tz=UTC)
    theirs = Webhook(secret).sign("id-1", at, BODY.decode())
    assert sign([secret], message_id="id-1", timestamp_s=1_700_000_000, body=BODY) == theirs


def test_during_a_rotation_either_secret_verifies_and_no_other() -> None:
    old, new = new_secret(), new_secret()
    signed = sign_headers([new, old], message_id="p1", timestamp_s=int(time.time()), body=BODY)
    for secret in (old, new):
        Webhook(secret).verify(BODY, signed)
        Webhooks.validate(headers=signed, body=BODY.decode(), secret=WebhookSigningSecret(key=secret))
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, signed)


def test_a_new_secret_is_one_that_every_client_can_split_and_decode() -> None:
    secrets = {new_secret() for _ in range(200)}
    assert len(secrets) == 200
    for secret in secrets:
        prefix, encoded = secret.split("_")
        assert prefix == "whsec"
        assert len(base64.b64decode(encoded, validate=True)) == 32


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "begins with whsec_"),
        ("", "begins with whsec_"),
        ("whsec_", "24 to 64 bytes, this one 0"),
        ("whsec_c2hvcnQ=", "24 to 64 bytes, this one 5"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "24 to 64 bytes, this one 65"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwQQ", "standard base64, padded"),
        ("whsec_MfKQ-r8GKYqrTwjUPD8ILPZIo2LaLaS_", "standard base64, padded"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSé", "standard base64, padded"),
    ],
)
def test_a_malformed_secret_is_explained_and_never_shown(secret: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        sign([secret], message_id="p1", timestamp_s=1, body=BODY)
    shown = secret.removeprefix("whsec_")
    assert not shown or shown not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_without_a_secret_nothing_is_signed() -> None:
    with pytest.raises(ValueError, match="no webhook secret"):
        sign([], message_id="p1", timestamp_s=1, body=BODY)


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\nb", "é"])
def test_an_id_that_could_be_read_two_ways_is_refused(message_id: str) -> None:
    with pytest.raises(ValueError, match="webhook id"):
        sign([SECRET], message_id=message_id, timestamp_s=1, body=BODY)
