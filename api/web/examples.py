"""Hold the examples of the OpenAPI document: one for each type that a body or an answer has. A test checks each of them
against its schema. An operation whose answer looks different has an example of its own.
"""

from typing import Any, Final

from director.core.ids import queue_name

PREDICTION_ID: Final = "06gzx0rcvbz008pmq2tvpfvnvc"
VERSION: Final = "5c7d5dc6dd8bf75c1acaa8565735e7986bc5b66206b55cca93cb72c9bf15ccaa"
STREAM_ADDRESS: Final = f"{PREDICTION_ID}-Yk3q8fJ0h2bXoV5s"
OUTPUT_NAME: Final = f"{PREDICTION_ID}-2c26b46b68ffc68ff99b453c1d304134.png"
BASE: Final = "https://director.example.com"
TRIED: Final = "9a1f" * 16  # another version
QUEUE: Final = queue_name("acme/painter", VERSION)
AT, LATER, END = (f"2026-11-23T04:00:0{second}Z" for second in ("0.120", "0.480", "2.310"))


def _run(kind: str, **changed: Any) -> dict[str, Any]:
    address = f"{BASE}/v1/{kind}/{PREDICTION_ID}"
    urls = {"get": address, "cancel": f"{address}/cancel", "web": f"{BASE}/p/{PREDICTION_ID}"}
    return {
        "id": PREDICTION_ID,
        "model": "acme/painter",
        "version": VERSION,
        "input": {"prompt": "a lighthouse at dusk", "seed": 7},
        "output": f"{BASE}/v1/outputs/{OUTPUT_NAME}?expires=1795409999&signature=…",
        "logs": "step 1 of 4\nstep 2 of 4\nstep 3 of 4\nstep 4 of 4\n",
        "error": None,
        "status": "succeeded",
        "created_at": AT,
        "started_at": LATER,
        "completed_at": END,
        "data_removed": False,
        "metrics": {"predict_time": 1.83},
        "urls": {**urls, "stream": f"{BASE}/v1/streams/{STREAM_ADDRESS}"},
        "source": "api",
        **changed,
    }


UNFINISHED: Final[dict[str, Any]] = {"output": None, "logs": "", "completed_at": None, "metrics": {}}
PLACE: Final = {
    "position": 1,
    "ahead": 3,
    "eta_s": {"p50": 4.0, "p90": 7.5},
    "reason": "waiting_its_turn",
    "detail": "It starts when those before it have.",
    "since": None,
}
STARTING: Final = {**UNFINISHED, "status": "starting", "started_at": None, "queue": PLACE}
CANCELED: Final = {**UNFINISHED, "status": "canceled", "completed_at": END}
SCHEMA: Final = {
    "components": {
        "schemas": {
            "Input": {
                "type": "object",
                "required": ["prompt"],
                "properties": {"prompt": {"type": "string"}, "seed": {"type": "integer"}},
            },
            "Output": {"type": "string", "format": "uri"},
        }
    }
}
ACCOUNT: Final = {
    "username": "acme",
    "name": "acme",
    "type": "organization",
    "github_url": None,
    "avatar_url": None,
}
LIMITS: Final = {
    "rate": 10,
    "burst": 20,
    "read_rate": None,
    "read_burst": None,
    "max_queued": 500,
    "max_running": 4,
    "compute_s_per_day": None,
    "compute_s_total": None,
    "data_ttl_s": None,
    "max_files_bytes": None,
    "weight": 1.0,
}
DETAIL: Final = {
    "name": "acme",
    "type": "organization",
    "suspension": None,
    "limits": LIMITS,
    "usage": {
        "bursts": {"create": 18},
        "spent_s": 412.5,
        "reserved_s": 3.7,
        "total_spent_s": 20911.0,
        "total_reserved_s": 3.7,
        "stored_bytes": 1048576,
        "data_bytes": 734003,
    },
}
USAGE: Final = {
    "runs": 1204,
    "seconds": 3811.25,
    "input_tokens": 1650320,
    "cached_tokens": 1204000,
    "output_tokens": 301455,
    "file_bytes": 0,
    "cost": 0.782419,
}
TOKEN: Final = {
    "id": "7f3c1a9be2d04856",
    "label": "ci",
    "last4": "x9Qd",
    "scopes": ["read", "run"],
    "lanes": ["normal", "low"],
    "created_at": AT,
    "expires_at": None,
}
VERSION_VIEW: Final = {"id": VERSION, "created_at": AT, "cog_version": "0.23.1", "openapi_schema": SCHEMA}
MODEL: Final = {
    "url": f"{BASE}/acme/painter",
    "owner": "acme",
    "name": "painter",
    "created_at": AT,
    "description": "Paints a picture from a prompt",
    "visibility": "public",
    "is_official": False,
    "github_url": None,
    "paper_url": None,
    "license_url": None,
    "run_count": 1204,
    "cover_image_url": None,
    "default_example": None,
    "latest_version": VERSION_VIEW,
}
COLLECTION: Final = {"name": "Best", "slug": "best", "description": "What we use most"}
SETUP: Final = {"status": "succeeded", "started_at": AT, "completed_at": END, "logs": "weights loaded\n"}
LETTER: Final = {
    "id": PREDICTION_ID,
    "queue": QUEUE,
    "model": "acme/painter",
    "version": VERSION,
    "account": "acme",
    "created_at": AT,
    "died_at": END,
    "error": "The director that ran this prediction was lost.",
    "code": "director_lost",
    "revivals": 0,
    "attempts": [
        {"number": 1, "director": "vm-7-5000", "claimed_at": LATER, "ended_at": END, "code": "director_lost"},
    ],
}
CONFIG: Final = {"slots": 2, "run_limit_s": 600, "attempts": 3}
CONFIG_VIEW: Final = {
    "revision": 3,
    "config": CONFIG,
    "changed_at": AT,
    "changed_by": "acme/7f3c1a9be2d04856",
}
QUEUE_VIEW: Final = {
    "name": QUEUE,
    "model": "acme/painter",
    "state": "serving",
    "opens_at": None,
    "paused": False,
    "breaker": "",
    "mode": "absorb",
    "max_queued": None,
    "waiting": {"high": 0, "normal": 4, "low": 12},
    "claimed": 2,
    "delayed": 0,
    "dead": 1,
    "live": 18,
    "oldest_s": 9.4,
    "slots": 2,
    "directors": 1,
    "run_s": 1.9,
    "streams": 16,
    "read": 16,
    "accepted": 1222,
    "started": 1206,
    "ended": 1204,
}
BY_LANE: Final = {"high": 0, "normal": 4, "low": 12}
OWED: Final = {
    "host": "hooks.example.com",
    "events": ["completed"],
    "is_owed": True,
    "attempts": 1,
    "last": "refused",
    "next_at": END,
    "deliveries": [
        {
            "event": "completed",
            "outcome": "refused",
            "status": 503,
            "attempt": 1,
            "at": LATER,
            "next_at": END,
            "host": "hooks.example.com",
            "rule": None,
        }
    ],
}
BODY: Final = {
    "input": {"prompt": "a lighthouse at dusk"},
    "webhook": "https://hooks.example.com/director",
    "webhook_events_filter": ["completed"],
}
RELEASE: Final = {
    "number": 2,
    "model": "acme/painter",
    "version": VERSION,
    "created_at": AT,
    "created_by": ACCOUNT,
    "configuration": {"hardware": "gpu-t4", "min_instances": 0, "max_instances": 1},
}

# by the name of the type in the document
PACE: Final = {
    "succeeded": 118,
    "failed": 2,
    "canceled": 1,
    "wait_p50_s": 0.42,
    "wait_p95_s": 3.1,
    "run_p50_s": 2.3,
    "run_p95_s": 4.4,
}
FILE_ID: Final = "file-06h2b08m194jqkpgc4z7tc5gmt"
BATCH_ID: Final = "batch_06h2b08m194jnpgc4z7tc5gmtb"
OPENAI_PAGE: Final = {"object": "list", "has_more": False}
OPENAI_FILE: Final = {
    "id": FILE_ID,
    "object": "file",
    "bytes": 11205,
    "created_at": 1795406400,
    "expires_at": 1797998400,
    "filename": "night.jsonl",
    "purpose": "batch",
    "status": "processed",
}
OPENAI_BATCH: Final = {
    "id": BATCH_ID,
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "errors": None,
    "input_file_id": FILE_ID,
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1795406400,
    "in_progress_at": 1795406401,
    "expires_at": 1795492800,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 100, "completed": 42, "failed": 1},
    "metadata": {"night": "1"},
    "progress": {
        "lines_per_second": 2.5,
        "ends_at": 1795406424,
        "causes": [{"code": "timed_out", "lines": 1}],
        "open_hours": "22:00-06:00 Europe/Berlin",
        "opens_at": None,
        "waits": None,
    },
}
OPENAI_MODEL: Final = {"id": "acme/llm", "object": "model", "created": 1795406400, "owned_by": "acme"}
MESSAGES: Final = [{"role": "user", "content": "Why is the sky blue?"}]
OF_TYPES: Final[dict[str, Any]] = {
    "Prediction": _run("predictions"),
    "Raw": _run("predictions"),
    "PredictionRequest": BODY,
    "VersionPredictionRequest": {"version": "acme/painter", **BODY},
    "TrainingRequest": {"destination": "acme/mine", "input": {"data": f"{BASE}/v1/files/{PREDICTION_ID}"}},
    "BatchRequest": {
        "predictions": [
            {"version": "acme/painter", "input": {"prompt": "a lighthouse at dusk"}},
            {"version": "acme/painter", "input": {"prompt": "a harbour at dawn"}},
        ]
    },
    "BatchResults": {
        "results": [
            {"status": 201, "prediction": _run("predictions", **STARTING)},
            {"status": 422, "error": {"title": "Input validation failed", "detail": "- input.seed: …", "status": 422}},
        ]
    },
    "Story": {
        "id": PREDICTION_ID,
        "model": "acme/painter",
        "version": VERSION,
        "queue_name": QUEUE,
        "status": "processing",
        "now": END,
        "submitted": {
            "at": AT,
            "lane": "normal",
            "account": "acme",
            "told": {"position": 1, "ahead": 3, "eta_s": {"p50": 4.0, "p90": 7.5}},
            "revivals": 0,
            "revived_at": None,
        },
        "version_because": f"because 10 % of acme/painter go to it since {AT}, to try it",
        "held": [
            {
                "number": 1,
                "director": "vm-7-5000",
                "waited_s": 0.36,
                "claimed_at": LATER,
                "started_at": LATER,
                "ended_at": None,
                "held_s": 1.83,
                "how": "",
                "is_spent": False,
            }
        ],
        "next": [{"what": "lease", "at": END, "detail": "Its director extends the lease before then."}],
        "ended": None,
        "webhook": None,
        "has_events": True,
    },
    "Events": {
        "events": [
            {"seq": 1, "type": "created", "at": AT, "data": None},
            {"seq": 2, "type": "logs", "at": LATER, "data": "step 1 of 4\n"},
        ],
        "next": 2,
        "data_removed": False,
    },
    "Webhooks": {"id": PREDICTION_ID, "webhook": OWED, "data_removed": False},
    "StreamEvent": {"id": "4:1:0", "event": "output", "data": "Once upon"},
    "ModelView": MODEL,
    "ModelStates": {
        "results": [
            {
                "model": "acme/painter",
                "created_at": AT,
                "version": VERSION,
                "state": "serving",
                "words": "serving",
                "shade": "good",
                "detail": "",
                "log": "",
                "slots": 2,
                "waiting": 4,
                "running": 2,
                "run_count": 1204,
                "succeeded": 118,
                "failed": 2,
                "run_p50_s": 2.3,
                "wait_p50_s": 0.42,
                "may_change": True,
                "has_openai": False,
            }
        ]
    },
    "NewModel": {"owner": "acme", "name": "painter", "visibility": "private", "hardware": "gpu-t4"},
    "ModelChange": {"description": "Paints a picture from a prompt"},
    "VersionView": VERSION_VIEW,
    "WholeVersionView": {**VERSION_VIEW, "setup_run": SETUP},
    "CollectionView": COLLECTION,
    "WholeCollection": {**COLLECTION, "full_description": None, "models": [MODEL]},
    "Hardware": {"name": "Nvidia T4", "sku": "gpu-t4"},
    "SearchResults": {
        "query": "paint",
        "models": [
            {
                "model": MODEL,
                "metadata": {"generated_description": "Paints a picture from a prompt", "score": 0.9, "tags": []},
            }
        ],
        "collections": [COLLECTION],
        "pages": [],
    },
    "DeploymentView": {"owner": "acme", "name": "painter", "current_release": RELEASE},
    "NewSplit": {"version": TRIED, "share": 10},
    "RolloutView": {
        "deployment": "acme/painter",
        "model": "acme/painter",
        "current": {
            "version": VERSION,
            "share": 90,
            "succeeded": 1071,
            "failed": 9,
            "failure_rate": 0.0083,
            "p50_s": 1.9,
        },
        "tried": {"version": TRIED, "share": 10, "succeeded": 119, "failed": 2, "failure_rate": 0.0165, "p50_s": 1.4},
        "split": {"version": TRIED, "share": 10, "since": AT, "margin": 5, "least": 50, "by": "acme"},
    },
    "NewDeployment": {
        "name": "painter",
        "model": "acme/painter",
        "version": VERSION,
        "hardware": "gpu-t4",
        "min_instances": 0,
        "max_instances": 1,
    },
    "DeploymentChange": {"version": VERSION},
    "File": {
        "id": PREDICTION_ID,
        "name": "cat.png",
        "content_type": "image/png",
        "size": 48213,
        "etag": "acbd18db4cc2f85cedef654fccc4a4d8",
        "checksums": {
            "sha256": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
            "md5": "acbd18db4cc2f85cedef654fccc4a4d8",
        },
        "metadata": {},
        "created_at": AT,
        "expires_at": "2026-11-24T04:00:00.120Z",
        "urls": {"get": f"{BASE}/v1/files/{PREDICTION_ID}"},
    },
    "FileUpload": {"content": "@cat.png", "type": "image/png"},
    "OwnAccountView": {**ACCOUNT, "scopes": ["read", "run"]},
    "WebhookSecret": {"key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
    "DeadLetter": LETTER,
    "WholeLetter": {**LETTER, "input": {"prompt": "a lighthouse at dusk", "seed": 7}},
    "Done": {"done": 2, "refused": [], "next": None, "secret": []},
    "ManyLetters": {"ids": [PREDICTION_ID]},
    "PredictionBrief": {
        **{"id": PREDICTION_ID, "account": "acme", "model": "acme/painter", "version": VERSION, "queue": QUEUE},
        **{"kind": "", "lane": "normal", "status": "failed", "created_at": AT, "started_at": LATER},
        **{"completed_at": END, "code": "timed_out", "error": "Prediction timed out"},
    },
    "ManyPredictions": {"account": "acme", "status": "failed", "code": "timed_out"},
    "BulkAnswer": {
        "done": 1,
        "refused": [{"id": PREDICTION_ID, "why": "has_ended"}],
        "next": None,
    },
    "UsageView": {
        "first": "2026-11-01",
        "last": "2026-11-28",
        "total": USAGE,
        "results": [{"model": "acme/llm", **USAGE}],
    },
    "AccountDetail": DETAIL,
    "NewAccount": {"name": "acme"},
    "AccountChange": {"limits": {"max_running": 4, "rate": "default", "max_queued": None}},
    "SuspendedAccount": {
        **DETAIL,
        "suspension": {"policy": "hold", "reason": "review", "since": AT},
        "ended": 0,
        "asked": 0,
        "left": 0,
    },
    "AskedSuspension": {"policy": "hold", "reason": "review"},
    "TokenView": TOKEN,
    "MadeToken": {**TOKEN, "token": "dr_4nT0b8sGkq2LrWf6yXcVjH1ux9Qd"},
    "CommandOrder": {"line": ["queues", "pause", "acme/painter"]},
    "CommandOutput": {"code": 0, "out": "acme/painter:9c1d5b0e7f3a is paused", "error": ""},
    "AskedLink": {"role": "viewer", "life_s": 600, "to": f"/p/{PREDICTION_ID}"},
    "AskedInvitation": {"role": "viewer", "label": "ann", "life_s": 86_400},
    "LinkView": {
        "url": "https://director.example/#/login/acme.9c1d5b0e7f3a2c4d6e8f9a0b1c2d3e4f5a6b7c8d",
        "expires_at": "2026-11-27T09:10:00.000000Z",
        "scopes": ["read", "view"],
        "token_id": "7f3c1a9be2d04856",
    },
    "TokenUpdate": {"scopes": ["read", "run"], "expires_at": None},
    "AskedToken": {"label": "ci", "scopes": ["read", "run"], "lanes": ["normal", "low"]},
    "ConfigView": CONFIG_VIEW,
    "ModelConfig": CONFIG,
    "QueueView": QUEUE_VIEW,
    "QueueDetail": {
        **QUEUE_VIEW,
        "heat": {"high": [0, 0], "normal": [2, 0], "low": [0, 1]},
        "tenants": [
            {
                "account": "acme",
                "waiting": 16,
                "running": 2,
                "paused": False,
                "suspended": False,
                "weight": 1.0,
                "max_running": 4,
            }
        ],
        "tally": {"succeeded": 1190, "failed": 14},
        "setup_run": {**SETUP, "server": "http://127.0.0.1:5000"},
        "config": CONFIG_VIEW,
        "objectives": {"normal": {"share": 0.95, "within_s": 10.0}},
        "burns": {"normal": {"1h": {"met": 980, "missed": 20, "rate": 0.4}}},
        "history": [
            {
                "at_ms": 1795406400000,
                "waiting": BY_LANE,
                "claimed": 2,
                "delayed": 0,
                "oldest_ms": 9400,
                "late": {"normal": 0},
                "accepted": BY_LANE,
                "started": 5,
                "ended": 5,
                "waited_ms": 18200,
                "met": {"normal": 5},
                "missed": {"normal": 0},
            }
        ],
    },
    "PaceOver": {
        "over": "15m",
        "step_s": 10,
        "since": AT,
        "until": LATER,
        "points": [{"at": AT, **PACE}],
        "levels": [{"at": AT, "waiting": 12, "busy_s": 40, "slots": 4}],
        "whole": PACE,
        "queues": [{"queue": QUEUE_VIEW["name"], **PACE}],
    },
    "SystemView": {
        "version": "0.3.0",
        "redis": {
            "kind": "valkey",
            "version": "9.1.2",
            "durability": "everysec",
            "memory_bytes": 48_210_112,
            "memory_limit_bytes": 1_073_741_824,
            "since": AT,
        },
        "sites": [{"name": "berlin", "state": "ready"}],
        "settings": [{"name": "DIRECTOR_PORT", "value": "8080", "default": "8080", "is_set": False}],
    },
    "LiveView": {
        "id": PREDICTION_ID,
        "state": "running",
        "status": "processing",
        "account": "acme",
        "lane": "normal",
        "created_at": AT,
        "attempt": 1,
        "director": "vm-7-5000",
        "claimed_at": LATER,
        "started_at": LATER,
        "due_at": None,
        "code": None,
    },
    "AskedPause": {"account": "acme"},
    "AskedSize": {"streams": 8},
    "AskedBound": {"mode": "bounded", "max_queued": 500},
    "AskedMigration": {"to": "acme/painter", "dry_run": True},
    "Drained": {"drained": True, "queue": {**QUEUE_VIEW, "paused": True, "state": "paused", "claimed": 0}},
    "Migrated": {"to": QUEUE, "dry_run": True, "moved": 16, "claimed": 2, "held": 0, "done": True},
    "DirectorView": {
        "name": "vm-7-5000",
        "alive": True,
        "seen_at": END,
        "since": AT,
        "version": "0.3.0",
        "state": "ready",
        "slots": 2,
        "held": 2,
        "queues": [{"queue": QUEUE, "at": END, "slots": 2, "state": "ready", "held": 2}],
        "servers": [
            {
                "url": "http://127.0.0.1:5000",
                "state": "ready",
                "since": AT,
                "slots": 2,
                "detail": "",
                "failed_starts": 0,
            }
        ],
        "more_servers": 0,
    },
    "AliasChange": {"alias": "gpt-4o", "model": "acme/llm"},
    "AliasesView": {"aliases": {"gpt-4o": "acme/llm"}},
    "OpenAiModel": OPENAI_MODEL,
    "OpenAiModels": {"object": "list", "data": [OPENAI_MODEL]},
    "ChatCompletionRequest": {"model": "acme/llm", "messages": MESSAGES, "stream": True},
    "CompletionRequest": {"model": "acme/llm", "prompt": "The sky is", "service_tier": "flex"},
    "EmbeddingRequest": {"model": "acme/embedder", "input": ["one text", "another one"]},
    "OpenAiUpload": {"file": "night.jsonl", "purpose": "batch"},
    "OpenAiFile": OPENAI_FILE,
    "OpenAiFiles": {**OPENAI_PAGE, "data": [OPENAI_FILE], "first_id": FILE_ID, "last_id": FILE_ID},
    "DeletedFile": {"id": FILE_ID, "object": "file", "deleted": True},
    "OutputExpiry": {"anchor": "created_at", "seconds": 604800},
    "NewBatch": {
        "input_file_id": FILE_ID,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"night": "1"},
    },
    "BatchView": OPENAI_BATCH,
    "BatchOfAccount": {**OPENAI_BATCH, "account": "acme"},
    "BatchPage": {**OPENAI_PAGE, "data": [OPENAI_BATCH], "first_id": BATCH_ID, "last_id": BATCH_ID},
    "OpenAiErrorDocument": {
        "error": {
            "message": "There is no such model, or this token may not use it.",
            "type": "not_found_error",
            "param": None,
            "code": "model_not_found",
        }
    },
    "AskedRedelivery": {"host": "hooks.example.com"},
    "Redelivered": {"done": 2, "left": 0, "more": False},
    "OwedView": {
        "count": 1,
        "late": 0,
        "oldest_at": AT,
        "looked_at": 1,
        "hosts": [{"host": "hooks.example.com", "count": 1, "oldest_at": AT, "next_at": END}],
        "results": [
            {
                "id": PREDICTION_ID,
                "queue": QUEUE,
                "account": "acme",
                "host": "hooks.example.com",
                "owed_since": AT,
                "attempts": 1,
                "outcome": "refused",
                "next_at": END,
            }
        ],
    },
    "LiveEvent": {"event": "snapshot", "data": "{}"},
    "AskedSteps": {"after": {"-1": ["0-0", 0], "721": ["1795406400120-0", 9841]}},
    "StepsView": {
        "batches": [
            {
                "partition": 721,
                "entries": [
                    {
                        "partition": 721,
                        "entry": "1795406400480-0",
                        "at": 1795406400480,
                        "kind": "claimed",
                        "id": PREDICTION_ID,
                        "queue": QUEUE,
                        "account": "acme",
                        "detail": "director-1 1",
                    }
                ],
                "missed": 0,
                "cursor": ["1795406400480-0", 9842],
            }
        ],
        "first": -1,
        "more": False,
        "queue": "",
    },
    "ChangesView": {
        "changes": [
            {
                "entry": "1795406400120-0",
                "id": "a91c",
                "at": AT,
                "by": "acme/7f3c1a9be2d04856",
                "kind": "queue.pause",
                "account": None,
                "queue": QUEUE,
                "detail": {},
            }
        ],
        "next": "1795406400120-0",
    },
}
# by operation, and `body` or the status of an answer
OF_OPERATIONS: Final[dict[str, Any]] = {
    "openai.chat.completions 200": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795406400,
        "model": "llm",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It scatters."}, "finish_reason": "stop"}],
    },
    "openai.completions 200": {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1795406400,
        "model": "llm",
        "choices": [{"index": 0, "text": " blue", "finish_reason": "stop"}],
    },
    "openai.embeddings 200": {
        "object": "list",
        "model": "embedder",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
    },
    **{
        f"{kind}.create 20{digit}": _run(path, **STARTING)
        for kind, path in (
            ("predictions", "predictions"),
            ("models.predictions", "predictions"),
            ("deployments.predictions", "predictions"),
            ("procedures", "procedures"),
            ("trainings", "trainings"),
        )
        for digit in (1, 2)
    },
    **{
        f"{kind}.{verb} 200": _run(kind, **changed)
        for kind in ("predictions", "procedures", "trainings")
        for verb, changed in (("get", {}), ("cancel", CANCELED))
    },
    "models.create 201": {**MODEL, "latest_version": None, "run_count": 0},
    "models.search body": "paint picture",
    "models.readme.get 200": "# Painter\n\nPaints a picture from a prompt.\n",
    "openapi.get 200": {"openapi": "3.1.0", "info": {"title": "Director"}, "paths": {}},
    "401": {"title": "Unauthenticated", "detail": "You did not pass an authentication token", "status": 401},
    "404": {"detail": "The requested resource could not be found.", "status": 404},
    "422": {
        "title": "Input validation failed",
        "detail": "- input: prompt is required\n",
        "status": 422,
        "invalid_fields": [{"type": "required", "field": "input", "description": "prompt is required"}],
    },
    "429": {
        "detail": "Request was throttled. Your rate limit resets in ~3s.",
        "status": 429,
        "code": "rate_limited",
        "retry_after": 3,
    },
}


def of(schema: dict[str, Any], what: str) -> Any:
    """Return the example of an operation's body or answer, else that of its type, else None: for bytes of a file."""
    return OF_OPERATIONS.get(what) or _of_type(schema)


def _of_type(schema: dict[str, Any]) -> Any:
    if schema.get("type") == "array":
        return [_of_type(schema["items"])]
    name = schema.get("$ref", "").rpartition("/")[2]
    if name.startswith("Page_"):
        return {"next": None, "previous": None, "results": [OF_TYPES[name.removeprefix("Page_").rstrip("_")]]}
    return OF_TYPES.get(name)
