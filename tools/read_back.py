"""Everything that is read back, and why it counts: the site of the documentation shows it (``reference/read-back``).

Each function of the package that reads a file or a blob belongs to one row. ``readers_of`` finds them by their calls; a
function without a row fails ``tests/test_read_back.py``. A row says who could have changed what is read, and what keeps
that from being believed. Looks at a store that read no content (listings, sizes, ETags) are a server's answers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What reads a file, a blob, a database or a document, by the last name of the call; and whole names.
_CALLS = frozenset({"read_bytes", "read_text", "read_own", "parse_json", "parse_object", "loads", "properties"})
_WHOLE = frozenset({"sqlite3.connect", "json.load"})
# These are the calls themselves.
_HOMES = frozenset({"base.plain_json", "base.user_folders"})
_MODE = re.compile(r"[rwaxbt+]{1,3}")


@dataclass(frozen=True, slots=True)
class ReadBack:
    """One row: what is read, where it lies, what makes it count, the tests that attack it, and the functions that read
    it, as ``module:name`` below ``blobsync``."""

    what: str
    where: str
    because: str
    tests: tuple[str, ...]
    readers: tuple[str, ...]


def readers_of(package: Path) -> Iterator[str]:
    """Every function that reads something, as ``module:name``."""
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package).with_suffix("").parts)
        if module not in _HOMES:
            found = _reading(ast.parse(file.read_text(encoding="utf-8")), "")
            yield from (f"{module}:{name}" for name in dict.fromkeys(found))


def _reading(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{name}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call) and _reads(child):
            yield inner
        yield from _reading(child, inner)


def _reads(call: ast.Call) -> bool:
    whole = ast.unparse(call.func)
    owner, _, last = whole.rpartition(".")
    if last in _CALLS or whole in _WHOLE:
        return True
    if last != "open" or whole == "os.open":
        return False
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    modes = [text for text in texts if _MODE.fullmatch(text)]
    plain = whole == "open" and len(call.args) == 1
    return owner.endswith("store") or plain or bool(modes and modes[-1].startswith("r"))


def table() -> str:
    """The table for the page."""
    head = "| read back | where it is | why it counts |\n|---|---|---|\n"
    return head + "".join(f"| {row.what} | {row.where} | {row.because} |\n" for row in ROWS)


_HOSTILE_CODE = "e2e/test_hostile_code.py::test_"

ROWS: tuple[ReadBack, ...] = (
    ReadBack(
        "the code of jobs, its digest and its list of files",
        "the container of `code_path`",
        "the digest is on record with you, or you named it; the node compares each file with it",
        (
            f"{_HOSTILE_CODE}code_that_somebody_else_published_runs_only_if_it_is_named_or_trusted",
            f"{_HOSTILE_CODE}a_digest_that_is_written_beside_the_code_is_not_believed",
            f"{_HOSTILE_CODE}a_folder_of_code_is_held_to_its_list",
        ),
        (
            "code.unpack:read_listed",
            "code.project_code:Code.read_digest",
            "code.publish:published_digest",
            "code.publish:_list_in",
            "code.publish:_manifest",
            "code.unpack:_sha256_of",
            "code.unpack:keep_listed",
        ),
    ),
    ReadBack(
        "the part of blobsync for nodes",
        "the container of `code_path`, the place of a transfer, a node's scratch folder",
        "its SHA-256 is in the job's specification and compared before anything is unpacked",
        (
            "unit/test_bootstrap.py::test_another_archive_than_the_jobs_is_refused_before_anything_is_unpacked",
            "unit/test_bootstrap.py::test_a_task_takes_what_another_one_on_its_node_has",
        ),
        (
            "node.standalone.bootstrap:Boot.fetch",
            "node.standalone.bootstrap:is_whole",
            "node.standalone.bootstrap:sha256",
        ),
    ),
    ReadBack(
        "the same part, as it is kept here",
        "your state folder",
        "sealed with your key",
        ("unit/test_node_archive.py::test_an_archive_that_somebody_else_kept_for_us_runs_on_no_node",),
        ("jobspec.node_archive:node_archive",),
    ),
    ReadBack(
        "the secrets of a job",
        "beside the code, on Azure ML; else a job's private folder, or a Secret of Kubernetes",
        "on Azure ML their SHA-256 is in the job's command; everywhere only variables that the job asks for are taken",
        (
            "e2e/test_aml.py::test_secrets_that_somebody_else_put_there_reach_no_program",
            "unit/test_node.py::test_a_file_of_secrets_sets_no_variable_that_the_job_does_not_ask_for",
        ),
        (
            "backends.aml.node_start:open_secrets",
            "node.standalone.bootstrap:Boot.__init__",
            "node.__main__:_carry_out",
            "node.job_stores:JobStores._reload_sas",
            "jobspec.spec:Secrets.from_json",
            "node.job_checkpoints:_keys",
        ),
    ),
    ReadBack(
        "shards, records and results of a transfer over nodes, and its runs",
        "the container of the transfer, or the folder that its nodes share",
        "sealed for the run, or with your own key; claims and probes only make somebody stop",
        (
            "e2e/test_spread_forgers.py::test_a_forger_beside_the_run_has_nothing_believed_or_uploaded",
            "unit/test_spread_places.py::test_what_a_stranger_writes_counts_as_absent_and_is_named_once",
            "unit/test_shards.py::test_a_record_of_another_version_than_the_plans_is_not_believed",
            "unit/test_worker_orders.py::test_a_shard_between_other_ends_is_refused",
        ),
        (
            "project.spreading:Spreading._earlier_runs",
            "spread.claim:take_claim",
            "spread.file_json:object_of",
            "spread.shared_store:earlier_result",
            "spread.shared_store:ContainerStore.read",
            "spread.shared_store:FolderStore.read",
            "spread.probe:_left_behind",
            "spread.probe:_problem",
        ),
    ),
    ReadBack(
        "logs of jobs, results and metrics of tasks",
        "the container, a job's folder, a service; then `assets/ID`",
        "they are shown as text, below names that pass the gate. `watch --retry` looks for causes in them, and submits "
        "again at most as often as you said, only a job that its cluster calls failed",
        (
            "e2e/test_jobs.py::test_logs_that_somebody_else_put_into_the_container_stay_out_of_other_folders",
            "cli/test_display.py::test_a_hostile_name_cannot_drive_the_terminal",
        ),
        (
            "backends.local.local_backend:LocalBackend.read_log",
            "jobs.logs:log_piece",
            "jobs.logs:FetchedLogs.tail",
            "jobs.logs:MirroredLogs.read",
            "jobs.task_table:_in_container",
            "jobs.task_table:_on_disk",
            "jobs.task_table:read_json_files",
            "jobs.task_table:read_metrics",
            "node.standalone.login_node_files:tails",
            "jobs.logs:_new_lines",
            "node.pod_log:Echo._new_lines",
            "node.uploader:_append_new",
        ),
    ),
    ReadBack(
        "data, with MD5s and block ids",
        "the container",
        "a container may choose it; sizes, MD5s and ETags are compared; block ids are hints",
        (
            "unit/test_delta_download.py::test_wrong_block_ids_cause_a_whole_download",
            "e2e/test_changed_blocks.py::test_foreign_blocks_under_our_tag_are_never_kept",
            "e2e/test_web_pages.py::test_names_and_contents_of_blobs_are_inert_and_no_page_has_a_key",
        ),
        (
            "azcopy.file_results:_look",
            "direct.copy:CopyJob._copy_whole",
            "direct.copy:CopyJob.open",
            "direct.range_reads:read_range",
            "direct.relay:RelayJob.open",
            "project.browse:blob_beginning",
            "project.content:_pieces",
            "project.doctor:_reading",
            "project.doctor:_removing",
            "store.open_locations:blob_md5",
            "web.previews:_json_rows",
        ),
    ),
    ReadBack(
        "receipts",
        "your state folder; with `--receipt` a copy beside the data",
        "the copy is never read; the other is sealed with the project's path, as the state folder is",
        ("e2e/test_hostile_state.py::test_a_shipped_state_folder_deletes_and_kills_nothing",),
        ("transfer.ledger:read_receipt", "transfer.ledger:upload_receipt"),
    ),
    ReadBack(
        "what was verified, blocks that were sent, part files, jobs, history, runs on this machine, hashes of the "
        "code, leftovers of azcopy",
        "the project's state folder",
        "sealed with the project's path: a folder that your own blobsync did not make there is not used",
        (
            "e2e/test_hostile_state.py::test_a_shipped_folder_under_the_right_name_counts_only_after_the_users_word",
            "unit/test_state_dir.py::test_no_seal_but_the_users_own_for_this_folder_counts",
            "unit/test_resume_records.py::test_a_head_that_is_none_makes_no_record",
        ),
        (
            "azcopy.file_results:LogFollower.read",
            "azcopy.run_folders:_owner",
            "code.snapshot:_Cache.load",
            "backends.local.run_files:_lines",
            "backends.local.local_backend:_tasks",
            "backends.local.run_files:RunFiles.read_status",
            "jobs.history:History._select",
            "backends.local.run_files:RunFiles.read_wanted",
            "backends.local.supervisor:Supervisor.__init__",
            "ancestors.batchai_job:recorded_job",
            "jobs.record:Home.from_json",
            "local.resume_records:_object",
            "local.running_records:RunningRecords.each",
            "local.migration:_demand_alone",
            "local.migration:_records",
            "cli.keep:_detached",
            "local.database:_connected",
            "local.migration:_copy_blocks",
            "local.migration:_copy_pieces",
            "local.state_dir:read_seal",
            "local.resume_records:_ends",
            "store.account_features:AccountFeatures.from_text",
            "local.resume_records:left_intents",
            "project.transfer_history:TransferLog._rows",
        ),
    ),
    ReadBack(
        "the specification of a job that was not submitted from here",
        "the tags of a job on Azure ML; a record in `.blobsync/jobs/` of the container",
        "its name passes the gate; submitted again only when you ask, with code that you published or trust. A record "
        "leads to no platform, disk, variable or other container: nothing is stopped or removed by it, and `resubmit` "
        "shows what would run and asks each time",
        (
            "unit/test_submit.py::test_a_job_that_a_service_told_of_brings_no_code_that_is_not_trusted",
            "unit/test_aml_replies.py::test_an_answer_of_another_shape_names_the_host_and_the_place",
            "unit/test_shared_records.py::test_the_gate_refuses_what_no_blobsync_writes",
            "unit/test_shared_records.py::test_only_what_others_may_say_is_taken_of_a_record",
            "unit/test_shared_records.py::test_what_is_done_to_a_job_of_somebody_else_is_refused_in_one_sentence",
            "unit/test_shared_records.py::test_a_million_names_are_not_listed_and_a_name_has_its_own_time",
        ),
        ("jobspec.spec:JobSpec.from_json", "jobs.shared_records:recalled", "jobs.shared_records:_read"),
    ),
    ReadBack(
        "logins, trusted links, code and options for docker, hosts, tunnels, projects, and the key of all seals",
        "your configuration folder",
        "owner and mode of the file and of its folder are checked; the key is for you alone to read",
        (
            "unit/test_user_config.py::test_a_file_that_others_can_write_or_replace_is_refused",
            "unit/test_state_dir.py::test_a_key_that_others_may_know_is_not_used",
            f"{_HOSTILE_CODE}what_is_known_is_the_users_own_and_of_this_project",
        ),
        (
            "config.logins:_read_logins",
            "config.trusted_code:load_known_code",
            "config.trust_store:TrustStore._read",
            "config.user_config:load_user_config",
            "tunnels.named:Tunnels.all",
            "local.state_dir:_key",
            "project.completion_names:_read_names",
        ),
    ),
    ReadBack(
        "the queue of this machine, open tunnels, the emulator's account and process",
        "your state and data folders, outside of projects",
        "made for you alone; a ticket only makes jobs wait, and no process is ended that is not the one on record",
        (
            "e2e/test_emulator.py::test_its_key_is_its_users_and_nobody_else_is_stopped_in_its_place",
            "e2e/test_hostile_state.py::test_a_shipped_state_folder_deletes_and_kills_nothing",
        ),
        (
            "emulator.server:kept_account",
            "emulator.server:Emulator._await_port",
            "emulator.server:Emulator._recorded",
            "backends.local.queue:_live",
            "backends.local.queue:_update",
            "tunnels.named:keep_tunnel",
            "tunnels.named:main",
            "tunnels.named:TunnelFolder.end_stray_line",
            "tunnels.named:TunnelFolder.read",
        ),
    ),
    ReadBack(
        "a job's own files: specification, exit code, what is ready, images, shells",
        "its folder on a login node or a shared file system, and the node's scratch folder",
        "each is made for you alone, and a folder of somebody else is refused; who may replace entries of "
        "`shared_root` itself can still exchange it ([out of scope](../security.md#what-is-out-of-scope))",
        (
            "unit/test_login_node.py::test_everything_on_a_login_node_is_made_for_its_owner_only",
            "unit/test_login_node.py::test_a_folder_of_another_user_gets_no_secret",
            "unit/test_node.py::test_a_scratch_folder_that_somebody_else_made_first_is_not_used",
            "unit/test_interactive.py::test_a_record_of_another_process_with_the_same_number_is_nobody",
        ),
        (
            "node.standalone.interactive:Place.read_hold",
            "node.standalone.interactive:enter",
            "node.standalone.interactive:read_shell",
            "node.standalone.login_node_files:_ends",
            "node.standalone.login_node_files:find_folder",
            "node.standalone.login_node_files:read",
            "node.container:JobImage.of",
            "node.job:read_text",
            "node.setup:make_ready",
            "node.__main__:_code_of_all",
        ),
    ),
    ReadBack(
        "locks and their lists",
        "the project, its commits, `.blobsync/locks/` of the container",
        "a list counts only as a whole, under the SHA-256 in the lock; every name is checked, and what is brought by "
        "it has the MD5 that it says",
        (
            "unit/test_lock_files.py::test_a_list_with_anything_wrong_in_it_is_refused",
            "unit/test_lock_files.py::test_a_list_that_is_not_the_locks_own_is_refused",
            "unit/test_locks.py::test_a_commit_of_a_strangers_clone_runs_nothing_and_is_checked",
            "unit/test_locks.py::test_a_long_list_is_in_the_container_under_its_digest",
            "unit/test_locked_files.py::test_a_lock_that_says_of_a_version_what_the_index_does_not_is_not_believed",
        ),
        (
            "local.lock_files:_write",
            "plan.locked_files:far_list",
            "store.old_contents:_Orders.begin",
            "store.old_contents:_Store.open",
            "project.locks:lock_at",
            "project.locks:_list_beside",
        ),
    ),
    ReadBack(
        "configuration, templates of jobs, ignore files, code, saved plans",
        "the project, or a file that you name",
        "a project's part is [limited](../security.md#a-project), and what a job would run is shown before; a saved "
        "plan is carried out only if a fresh look comes to the same",
        (
            "e2e/test_links.py::test_a_saved_plan_needs_the_trust_of_the_user_who_applies_it",
            "unit/test_job_form.py::test_a_template_from_a_clone_reads_no_other_file_and_writes_none",
            "unit/test_hostile_input.py::test_a_configuration_of_megabytes_is_refused_unread",
            "unit/test_url_list.py::test_a_list_reaches_nothing_inside_the_network",
            "unit/test_sweep.py::test_a_file_that_is_no_list_of_tasks_is_refused",
        ),
        (
            "jobspec.sweep:_read_file",
            "cli.completion:complete_plan",
            "code.packed_files:_beginning",
            "code.packed_files:_marked",
            "code.snapshot:holds_secret",
            "config.check:_not_ignored",
            "config.scaffold:_add_ignore_lines",
            "config.scaffold:leaves_out_accounts",
            "config.scaffold:follow_emulator",
            "config.source_option:read_list",
            "config.yaml_document:read_document",
            "local.files:hash_file",
            "local.trash:_copied",
            "local.ignore_patterns:_read",
            "plan.saved_plan:load",
            "project.browse:file_beginning",
            "project.content:_size",
        ),
    ),
    ReadBack(
        "answers of services, of programs, and of processes that blobsync started",
        "a connection, a pipe",
        "they have a shape and limits; a worker's answers are compared with its orders",
        (
            "contract/test_aml_client.py::test_every_response_ends_in_our_error",
            "unit/test_login_node.py::test_an_answer_of_another_form_is_one_sentence",
            "unit/test_hostile_input.py::test_an_answer_without_end_is_not_kept_in_memory",
        ),
        (
            "azcopy.azcopy_process:_object",
            "cli.demo:ShownCommands.ask",
            "backends.aml.client:AmlClient._json",
            "backends.aml.error_responses:read_refusal",
            "backends.aml.sweep_job:_number",
            "backends.kubernetes.kubectl:Kubectl._object",
            "backends.login_node:LoginNode._ask",
            "node.standalone.login_node_files:main",
            "tunnels.job_tunnel:BesideProgram._first_answer",
            "node.standalone.tensorboard_jupyter:main",
            "spread.orders:read_orders",
            "spread.worker_process:Incoming._of_shards",
        ),
    ),
    ReadBack(
        "the marks of checkpoints, and what the nodes of a job say to each other about them",
        "`.blobsync/checkpoints/` of a folder entry's container",
        "they have the seal of their lineage, whose key travels with the job: a mark without it displaces and deletes"
        " nothing, and is taken only where its job and its step are named; a note without it is none. Names pass the"
        " gate; size and MD5 of every file are compared with a listing, and with the bytes that arrived",
        (
            "unit/test_marks.py::test_only_the_lineages_seal_makes_a_mark_its_own",
            "unit/test_marks.py::test_a_seal_is_good_for_one_mark_in_one_place",
            "unit/test_marks.py::test_what_is_read_of_marks_without_a_seal_is_bounded_and_leaves_the_sealed_ones_alone",
            "unit/test_set_uploads.py::test_a_forged_mark_displaces_nothing_and_has_nothing_deleted",
            "unit/test_set_uploads.py::test_an_unsealed_set_is_restored_only_where_its_job_and_its_step_are_named",
            "unit/test_node_checkpoints.py::test_what_anybody_else_says_in_node_0s_name_chooses_no_lineage",
            "unit/test_marks.py::test_a_mark_of_somebody_else_passes_the_gate_or_is_left_alone",
            "unit/test_marks.py::test_files_are_compared_with_their_mark",
            "unit/test_node_messages.py::test_a_note_of_somebody_else_counts_as_absent_and_is_named_once",
            "unit/test_set_uploads.py::test_a_forged_answer_of_a_node_is_held_against_the_container",
            "unit/test_node_checkpoints.py::test_a_set_that_was_changed_in_the_container_is_passed_over",
        ),
        (
            "project.checkpoints:_BlobContent.text",
            "keep.marks:Mark.from_json",
            "keep.marks:Documents.read",
            "keep.node_messages:Notes.said",
        ),
    ),
    ReadBack(
        "checkpoints that a program writes, what it says of them, and which one it was started from",
        "a job's folders on its node",
        "the job's own program and blobsync wrote them; they decide only whether a set of its files goes up, and a"
        " number for `keep_best`",
        (
            "unit/test_set_uploads.py::test_a_file_that_is_cut_off_is_seen_by_its_format",
            "unit/test_mark_complete.py::test_what_is_no_request_says_nothing",
        ),
        (
            "keep.set_files:FolderContent.is_json",
            "keep.set_files:FolderContent.text",
            "keep.set_uploads:FolderSets._value",
            "keep.set_files:_is_whole",
            "keep.set_files:_tensor_bytes",
            "local.mark_complete:_request",
            "node.job_checkpoints:_brought",
            "node.job_checkpoints:_record",
            "node.job:NodeJob._checkpoint_variables",
        ),
    ),
    ReadBack(
        "azcopy, when it is installed",
        "a download, or a file that you name",
        "its SHA-256 is in blobsync, or you gave it",
        ("unit/test_azcopy_install.py",),
        ("azcopy.install:_digest", "azcopy.install:_unpack"),
    ),
    ReadBack(
        "which processes run, and their variables",
        "`/proc`",
        "the kernel says it; of other users' processes nothing is taken",
        (
            "unit/test_transfer_history.py::test_what_a_killed_transfer_left_is_not_believed_and_goes",
            "unit/test_interactive.py::test_a_shell_has_nothing_of_another_users_process",
        ),
        (
            "base.socket_owners:_knows_some_users_only",
            "base.socket_owners:socket_table",
            "base.process_identity:_facts",
            "base.process_identity:variables_of",
            "keep.watcher:file_system_of",
            "keep.watcher:watched_folders",
            "project.keeper_records:_holders",
            "node.standalone.interactive:environment_of",
            "node.standalone.interactive:fields_of",
            "node.standalone.interactive:is_own",
            "node.processes:processes_that_handle",
            "node.standalone.tensorboard_jupyter:read",
            "spread.process_engine:cpu_clocks",
        ),
    ),
    ReadBack(
        "blobsync itself",
        "where it is installed",
        "whoever can change it is blobsync",
        (),
        (
            "emulator.server:pinned_version",
            "backends.aml.request:command_line",
            "backends.login_node:LoginNode._ask",
            "jobspec.node_archive:_licence",
            "jobspec.node_archive:standalone_source",
            "jobspec.node_archive:blobsync_sources",
            "jobspec.node_archive:outside_sources",
        ),
    ),
    ReadBack(
        "what the same process has just made: rows of a large plan, files of the demonstration, texts",
        "memory, and files without a name",
        "nobody else can open them",
        (),
        (
            "cli.demo:change_some",
            "cli.demo:checksums",
            "jobs.foreground:_without_folders",
            "local.sorted_runs:_RowFile.read",
            "plan.saved_plan:_demand_readable",
        ),
    ),
)
