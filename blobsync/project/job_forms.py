"""The forms for jobs of a project: checked, planned, submitted, filled from old jobs, kept as templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from blobsync.config.loader import load_cluster
from blobsync.jobs.form import templates
from blobsync.jobs.form.fields import GROUPS, FormField, choices_of, fields_of
from blobsync.jobs.form.filled import AskedJob, CheckedForm, FilledForm, JobForm, check_form, form_of_job

if TYPE_CHECKING:
    from blobsync.config.model import Cluster
    from blobsync.jobs.record import JobRecord
    from blobsync.jobs.submit import Submitted
    from blobsync.project.jobs import Jobs, PlannedJob


class ProjectWithJobs(Protocol):
    """What submitting needs of a project; ``blobsync.Project`` is one."""

    @property
    def jobs(self) -> Jobs: ...

    def close(self) -> None: ...


class FieldGroup(NamedTuple):
    """Fields that belong together, each with what may be chosen in it (empty: anything)."""

    name: str
    fields: tuple[tuple[FormField, tuple[str, ...]], ...]


class JobForms:
    """The forms of one project; each submission may be for another cluster.

    What a form asks for is what ``blobsync -c -n -p submit`` would: ``AskedJob.command_line`` is that line.
    """

    def __init__(
        self, root: Path, environ: Mapping[str, str], open_project: Callable[[Cluster], ProjectWithJobs]
    ) -> None:
        """``open_project`` gives the project through a cluster."""
        self.root = root
        self._environ = environ
        self._open_project = open_project

    def groups(self, platform: str) -> tuple[FieldGroup, ...]:
        """The fields that jobs on a platform have, in their order; groups without one are left out."""
        fields = fields_of(platform)
        found = (
            FieldGroup(name, tuple((one, choices_of(one)) for one in fields if one.group == name)) for name in GROUPS
        )
        return tuple(group for group in found if group.fields)

    def check(self, form: JobForm) -> CheckedForm:
        """All mistakes of a form, each at its field; or the submission that it stands for. Uses no network."""
        return check_form(self.root, form, self._environ)

    def plan(self, asked: AskedJob) -> PlannedJob:
        """The exact request (``submit --dry-run``); nothing is uploaded, submitted or recorded. Raises what it does."""
        with self._jobs(asked) as jobs:
            return jobs.plan(asked.argv, **asked.keywords)

    def submit(self, asked: AskedJob) -> Submitted:
        """Submit it. Raises what ``project.jobs.submit`` does."""
        with self._jobs(asked) as jobs:
            return jobs.submit(asked.argv, **asked.keywords)

    def fill(self, record: JobRecord) -> FilledForm:
        """The form that asks for what a recorded job had."""
        from blobsync.base.errors import BlobsyncError

        known: Cluster | None = None
        try:
            known = load_cluster(self.root, record.cluster, environ=self._environ)
        except BlobsyncError:
            # The form says what is wrong with the file.
            known = None
        return form_of_job(record, known)

    def template_names(self) -> tuple[str, ...]:
        """The templates of the project, sorted."""
        return templates.template_names(self.root)

    def template(self, name: str) -> FilledForm:
        """The form that a template fills in. Raises ``NothingMatchedError``, ``ConfigError``, ``UnsafeNameError``."""
        return templates.load_template(self.root, name)

    def save_template(self, name: str, form: JobForm, *, replace: bool = False) -> str:
        """Keep a form; returns its file. Raises ``UsageError`` if the name is taken, or if it would hold a credential,
        ``UnsafeNameError`` and ``LocalFileError``."""
        return templates.save_template(self.root, name, form, replace=replace)

    def remove_template(self, name: str) -> None:
        """Delete a template. Raises ``NothingMatchedError``, ``UnsafeNameError`` and ``LocalFileError``."""
        templates.remove_template(self.root, name)

    @contextmanager
    def _jobs(self, asked: AskedJob) -> Iterator[Jobs]:
        cluster = load_cluster(self.root, asked.cluster, overrides=asked.overrides, environ=self._environ)
        project = self._open_project(cluster)
        try:
            yield project.jobs
        finally:
            project.close()
