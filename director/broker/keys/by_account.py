"""How the keys of one account are spelled. A script that takes several works in the slot of the account's own tag."""

from director.core.ids import FileId, Kind

__all__ = (
    "account",
    "accounts",
    "compute",
    "credit",
    "deployment",
    "deployments",
    "file",
    "files",
    "listing",
    "settling",
    "stored",
    "stored_until",
    "suspensions",
    "taken",
    "token",
    "tokens",
    "usage",
)


def token(digest: str) -> str:
    """hash · who a bearer token speaks for, by the SHA-256 of the token. Permanent. One that expires is gone then."""
    return f"token:{digest}"


def tokens(account: str) -> str:
    """zset · the digests of an account's tokens → when each was made, ms. Written before the token. Permanent."""
    return f"tokens:{account}"


def account(name: str) -> str:
    """hash · an account: its type; its webhook secrets; its limits where they are not those of all, and how often they
    changed; why it is suspended.

    Permanent.
    """
    return f"account:{name}"


def accounts() -> str:
    """set · every account that was given a token or a limit. Permanent."""
    return "accounts"


def deployment(account: str, name: str) -> str:
    """string · what a deployment of an account stands for, as JSON. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployment:{name}"


def deployments(account: str) -> str:
    """zset · the names of an account's deployments → created, ms. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployments"


def suspensions() -> str:
    """zset · account → twice the number of its last suspension or resumption, and 1 while suspended. Permanent."""
    return "suspensions"


def settling() -> str:
    """zset · accounts whose queues are brought into line with a suspension → since, ms. By its keeper. Permanent."""
    return "settling"


def listing(account: str, kind: Kind = "") -> str:
    """zset · an account's ids of one kind, which sort by time. Written before enqueue; trimmed as it grows."""
    return f"{{a:{account}}}:listing" + (f":{kind}" if kind else "")


def file(account: str, file_id: FileId) -> str:
    """string · what is known of a file that a caller gave, as JSON. Written once it is stored; until it expires."""
    return f"{{a:{account}}}:file:{file_id}"


def files(account: str) -> str:
    """zset · ids of an account's files, which sort by time. Written and trimmed with each; until the last expires."""
    return f"{{a:{account}}}:files"


def usage(account: str) -> str:
    """hash · what is left of an account's rates, its denied bursts. Written by reserve; a day after the last one."""
    return f"{{a:{account}}}:usage"


def taken(account: str) -> str:
    """zset · who took a token lately → when, ms, so that a repeated call takes once. Written by reserve; 30 seconds."""
    return f"{{a:{account}}}:taken"


def compute(account: str) -> str:
    """hash · the day's compute: spent, reserved, and by whom. Written by reserve and spend; 2 days."""
    return f"{{a:{account}}}:compute"


def credit(account: str) -> str:
    """hash · as `compute`, of all days together, while there is a limit of that. By reserve and spend. Permanent."""
    return f"{{a:{account}}}:credit"


def stored(account: str) -> str:
    """hash · id of a file, or of a prediction with files → its bytes, and `total`. By stow; until the last is over."""
    return f"{{a:{account}}}:stored"


def stored_until(account: str) -> str:
    """zset · of `stored`, each id → when it is over, ms. Written by stow; until the last one is over."""
    return f"{{a:{account}}}:stored_until"
