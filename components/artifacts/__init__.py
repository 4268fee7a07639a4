"""The artifact store: finished stages as immutable, verified directories, found by (stage, key).

    <root>/<stage>/<key>/            a finished artifact: its files and ``manifest.json``
    <root>/<stage>/<key>.partial/    the draft of one being built; ``checkpoints/`` in it survives a crash
    <root>/<stage>/<key>.lock        flock of the one process that builds it; its text says who that is
    <root>/.quarantine/<stage>/      damaged artifacts, each with the reason next to it

Standard library only: a cached run never pays for more.
"""

from components.artifacts.claim import Claim, last_step, was_begun
from components.artifacts.directory import Damaged, UnknownSchema, commit_directory, load_directory
from components.artifacts.draft import check_draft, note_draft, restore_draft
from components.artifacts.jsonio import (
    canonical_json,
    check_name,
    plain_json,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from components.artifacts.store import ArtifactStore

__all__ = [
    "ArtifactStore",
    "Claim",
    "Damaged",
    "UnknownSchema",
    "canonical_json",
    "check_draft",
    "check_name",
    "commit_directory",
    "last_step",
    "load_directory",
    "note_draft",
    "plain_json",
    "read_json",
    "read_jsonl",
    "restore_draft",
    "was_begun",
    "write_json",
    "write_jsonl",
]
