"""Where each page of the site stands: one of four kinds.

A tutorial teaches by doing, a how-to page solves one problem, the reference tells all of one subject, an explanation
says why. A page of ``docs/`` without a place here fails the build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Heading in the navigation -> names of pages, without ``.md``.
KINDS: Mapping[str, Sequence[str]] = {
    "Tutorial": ("tutorial",),
    "How-to": (
        *("how-to/restore-a-deleted-blob", "how-to/share-a-folder", "how-to/limit-bandwidth", "how-to/many-accounts"),
        *("how-to/use-a-proxy", "how-to/without-internet", "how-to/in-ci", "how-to/from-azcopy", "how-to/from-rclone"),
        *("how-to/from-dvc", "migrating-from-act", "code-archive", "jobs", "tunnels", "web", "kubernetes", "aml"),
        *("batchai", "spread", "keep", "checkpoints", "sources"),
    ),
    "Reference": (
        *("commands", "reference/options", "configuration", "reference/keys", "reference/environment", "credentials"),
        *("reference/json", "reference/exit-codes", "failure-codes", "python", "reference/python-api", "azcopy"),
        "changelog",
    ),
    "Explanation": ("concepts", "security", "reliability", "verified", "performance", "large-plans", "contributing"),
}
