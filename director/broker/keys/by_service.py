"""How the keys of the service as a whole are spelled: registries, secrets, and who reads how far."""

__all__ = (
    "changes",
    "contact",
    "ends_channel",
    "kick_channel",
    "partitions",
    "queues",
    "secret",
    "sink",
    "site",
)


def contact() -> str:
    """hash · how long keepers have heard this run of the server. Written by contact; outlives them shortly."""
    return "contact"


def changes() -> str:
    """stream · what operators change, about the last 10,000 entries. Written by note, before each change. Permanent."""
    return "changes"


def queues() -> str:
    """set · every queue there is. Written when a version is registered, before its first enqueue. Permanent."""
    return "queues"


def partitions() -> str:
    """set · every partition that ever had a queue: what ended there may owe longer than it has one. Permanent."""
    return "partitions"


def secret(purpose: str) -> str:
    """string · what one kind of thing is signed with. Made once, by whoever needs it first. Permanent."""
    return f"secret:{purpose}"


def sink(name: str) -> str:
    """hash · partition → how far a sink has read its log: entry and number. Written by `director audit`. Permanent."""
    return f"sink:{name}"


def site() -> str:
    """string · what this server is called by those that send predictions to it. Made by the first. Permanent."""
    return "site"


def kick_channel(consumer: str) -> str:
    """channel · the id of a claim of this director that was asked to cancel."""
    return f"kick:{consumer}"


def ends_channel(waiter: str) -> str:
    """channel · ends of predictions whose callers this API process holds, see director.store.endings.

    It begins as the one above does, since that is where a user of ours at Redis may publish in any release.
    """
    return f"kick:ends:{waiter}"
