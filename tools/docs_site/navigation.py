"""Where each page of the site stands: one of four groups, those of ``docs/index.md``.

``Start`` is what a new user reads first. A recipe solves one problem, a guide shows how to do one kind of work, the
reference tells all of one subject. A page of ``docs/`` without a place here fails the build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Heading in the navigation -> names of pages, without ``.md``.
KINDS: Mapping[str, Sequence[str]] = {
    "Start": ("overview", "tutorial", "concepts", "verified"),
    "Recipes": (
        *("undo", "how-to/share-a-folder", "how-to/limit-bandwidth", "how-to/many-accounts"),
        *("how-to/use-a-proxy", "how-to/without-internet", "how-to/in-ci", "how-to/from-azcopy", "how-to/from-rclone"),
        *("how-to/from-dvc", "migrating-from-act"),
    ),
    "Guides": (
        *("jobs", "checkpoints", "code-archive", "aml", "kubernetes", "batchai", "tunnels", "keep", "locks", "spread"),
        *("large-plans", "sources", "credentials", "azcopy", "web", "python"),
    ),
    "Reference": (
        *("commands", "reference/options", "configuration", "reference/keys", "reference/environment"),
        *("reference/json", "reference/exit-codes", "failure-codes", "reference/python-api", "reliability", "security"),
        *("reference/read-back", "performance", "architecture", "changelog", "contributing"),
    ),
}
