"""The table of every route: which path leads to which room.

Names rooms and nothing in them; a path is written once, without the bases that `app.py` puts before it.
"""

from typing import Final

from api import accounts, health
from api.admin import accounts as admin_accounts
from api.admin import changes as admin_audit
from api.admin import dead as admin_dead
from api.admin import models as admin_models
from api.admin import overview as admin_directors
from api.admin import overview as admin_live
from api.admin import overview as admin_metrics
from api.admin import overview as admin_owed
from api.admin import queues as admin_queue_changes
from api.admin import queues as admin_queues
from api.dashboard import page
from api.door import Handler
from api.files import files, outputs
from api.files import outputs as ours
from api.models import collections, deployments, models
from api.models import collections as search
from api.models import models as versions
from api.openapi import served
from api.predictions import events, listing, predictions, streams
from api.predictions import events as webhooks
from api.predictions import predictions as batches
from api.predictions import predictions as procedures
from api.predictions import predictions as trainings

ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("POST", "/predictions", predictions.create),
    ("GET", "/predictions", listing.list_predictions),
    ("POST", "/predictions/batch", batches.create_batch),
    ("GET", "/predictions/{id}", predictions.get),
    ("DELETE", "/predictions/{id}", predictions.delete),
    ("GET", "/predictions/{id}/explain", predictions.explain),
    ("GET", "/predictions/{id}/events", events.get_events),
    ("GET", "/predictions/{id}/webhooks", webhooks.get_webhooks),
    ("POST", "/predictions/{id}/webhooks/redeliver", webhooks.redeliver),
    ("POST", "/predictions/{id}/cancel", predictions.cancel),
    ("GET", "/streams/{address}", streams.stream),
    ("OPTIONS", "/streams/{address}", streams.preflight),
    ("GET", "/models", models.list_models),
    ("POST", "/models", models.make_model),
    ("QUERY", "/models", search.query_models),
    ("GET", "/models/{owner}/{name}", models.get_model),
    ("PATCH", "/models/{owner}/{name}", models.change_model),
    ("DELETE", "/models/{owner}/{name}", models.delete_model),
    ("GET", "/models/{owner}/{name}/readme", models.get_readme),
    ("GET", "/models/{owner}/{name}/examples", models.get_examples),
    ("POST", "/models/{owner}/{name}/predictions", predictions.create_of_model),
    ("GET", "/models/{owner}/{name}/versions", versions.list_versions),
    ("GET", "/models/{owner}/{name}/versions/{id}", versions.get_version),
    ("DELETE", "/models/{owner}/{name}/versions/{id}", versions.delete_version),
    ("POST", "/models/{owner}/{name}/versions/{id}/trainings", trainings.create_training),
    ("GET", "/trainings", trainings.list_trainings),
    ("GET", "/trainings/{id}", trainings.get_training),
    ("POST", "/trainings/{id}/cancel", trainings.cancel_training),
    ("POST", "/procedures", procedures.create_procedure),
    ("GET", "/procedures", procedures.list_procedures),
    ("GET", "/procedures/{id}", procedures.get_procedure),
    ("POST", "/procedures/{id}/cancel", procedures.cancel_procedure),
    ("GET", "/deployments", deployments.list_deployments),
    ("POST", "/deployments", deployments.create_deployment),
    ("GET", "/deployments/{owner}/{name}", deployments.get_deployment),
    ("PATCH", "/deployments/{owner}/{name}", deployments.update_deployment),
    ("DELETE", "/deployments/{owner}/{name}", deployments.delete_deployment),
    ("POST", "/deployments/{owner}/{name}/predictions", deployments.create_of_deployment),
    ("GET", "/collections", collections.list_collections),
    ("GET", "/collections/{slug}", collections.get_collection),
    ("GET", "/hardware", collections.list_hardware),
    ("GET", "/search", search.search),
    ("POST", "/files", files.create_file),
    ("GET", "/files", files.list_files),
    ("GET", "/files/{id}", files.get_file),
    ("DELETE", "/files/{id}", files.delete_file),
    ("GET", "/files/{id}/download", files.download_file),
    ("GET", "/files/{id}/download/{name}", files.download_file),
    ("GET", "/outputs/{name}", outputs.get_output),
    ("GET", "/account", accounts.get_account),
    ("GET", "/webhooks/default/secret", accounts.get_webhook_secret),
    ("GET", "/openapi.json", served.get_document),
    ("GET", "/admin/dead", admin_dead.list_dead),
    ("POST", "/admin/dead/revive", admin_dead.revive_dead),
    ("POST", "/admin/dead/drop", admin_dead.drop_dead),
    ("GET", "/admin/dead/{id}", admin_dead.get_dead),
    ("POST", "/admin/dead/{id}/revive", admin_dead.revive_one_dead),
    ("POST", "/admin/dead/{id}/drop", admin_dead.drop_one_dead),
    ("GET", "/admin/accounts", admin_accounts.list_accounts),
    ("POST", "/admin/accounts", admin_accounts.create_account),
    ("GET", "/admin/accounts/{name}", admin_accounts.get_account_of_all),
    ("PATCH", "/admin/accounts/{name}", admin_accounts.change_account),
    ("POST", "/admin/accounts/{name}/suspend", admin_accounts.suspend_account),
    ("POST", "/admin/accounts/{name}/resume", admin_accounts.resume_account),
    ("GET", "/admin/accounts/{name}/tokens", admin_accounts.list_tokens),
    ("POST", "/admin/accounts/{name}/tokens", admin_accounts.create_token),
    ("DELETE", "/admin/accounts/{name}/tokens/{id}", admin_accounts.revoke_token),
    ("GET", "/admin/queues", admin_queues.list_queues),
    ("GET", "/admin/queues/{owner}/{name}/{version}", admin_queues.get_queue),
    ("GET", "/admin/queues/{owner}/{name}/{version}/predictions", admin_queues.list_live),
    ("POST", "/admin/queues/{owner}/{name}/{version}/pause", admin_queue_changes.pause_queue),
    ("POST", "/admin/queues/{owner}/{name}/{version}/resume", admin_queue_changes.resume_queue),
    ("POST", "/admin/queues/{owner}/{name}/{version}/drain", admin_queue_changes.drain_queue),
    ("POST", "/admin/queues/{owner}/{name}/{version}/resize", admin_queue_changes.resize_queue),
    ("POST", "/admin/queues/{owner}/{name}/{version}/bound", admin_queue_changes.bound_queue),
    ("POST", "/admin/queues/{owner}/{name}/{version}/migrate", admin_queue_changes.migrate_queue),
    ("GET", "/admin/directors", admin_directors.list_directors),
    ("GET", "/admin/owed", admin_owed.get_owed),
    ("GET", "/admin/live", admin_live.follow_live),
    ("GET", "/admin/audit", admin_audit.list_changes),
    ("GET", "/admin/models/{owner}/{name}/config", admin_models.get_config),
    ("PUT", "/admin/models/{owner}/{name}/config", admin_models.change_config),
    ("DELETE", "/admin/models/{owner}/{name}/config", admin_models.remove_config),
)
PROBES: Final[tuple[tuple[str, Handler], ...]] = (
    ("/livez", health.livez),
    ("/readyz", health.readyz),
    ("/metrics", admin_metrics.get_metrics),
)
# For our own directors, without the bases: no caller has use for them
INTERNAL: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/internal/files", ours.look_at_files),
    ("PUT", "/internal/outputs/{name}", ours.put_output),
    ("DELETE", "/internal/predictions/{id}/outputs", ours.delete_outputs),
)
# For browsers, without the bases
PAGES: Final[tuple[tuple[str, Handler], ...]] = (
    ("/", page.page),
    ("/p/{id}", page.for_people),
    ("/dashboard/{path:path}", page.asset),
)
