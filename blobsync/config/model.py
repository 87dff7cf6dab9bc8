"""The configuration as values: no YAML, no files, nothing left to check.

``loader`` creates these; everything else reads them. Secrets are wrapped (``Secret``, ``SasToken``), and the
free-form settings of a cluster are not in its ``repr``, so printing a value shows no key.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from blobsync.base.errors import ConfigError
from blobsync.base.locations import BlobContainer, BlobLocation, Bucket, UrlList
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken, Secret

if TYPE_CHECKING:
    # Nodes read these values, and have no YAML; few projects have the others.
    from blobsync.config.checkpoint_rule import CheckpointRule
    from blobsync.config.sources import BucketAccess, WebFiles
    from blobsync.config.yaml_document import Document

DEFAULT_CLUSTER = "aml"
# Platforms whose service itself provides the folders on the nodes.
AML_PLATFORMS = ("aml", "itp", "singularity")
# The name that Azure's storage emulators give their account.
# https://learn.microsoft.com/azure/storage/common/storage-connect-azurite
EMULATOR_ACCOUNT = "devstoreaccount1"
PUBLIC_MANAGEMENT_ENDPOINT = "https://management.azure.com"


def value_at(values: object, path: Iterable[str]) -> Any:
    """The value at a path of keys, None if there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def default_blob_endpoint(account_name: str) -> str:
    """The endpoint of an account in the public cloud."""
    return f"https://{account_name}.blob.core.windows.net"


class StorageAccount(NamedTuple):
    """One storage account file: a container and the right to use it, or a source: a ``bucket``, or ``web`` files.

    ``file`` is how the cluster file named it, for messages. ``auth`` forces one credential (``sas``, ``key``
    or ``identity``); None means the first that is there, in this order. ``from_outside`` are the credentials
    (``sas``, ``key``) that the file does not hold itself: of environment variables, of ``blobsync login``. ``origin``
    says for people where the one that is used comes from.
    """

    file: str
    account_name: str
    container_name: str
    blob_endpoint: str
    account_key: Secret | None = None
    sas_token: SasToken | None = None
    auth: str | None = None
    from_outside: frozenset[str] = frozenset()
    origin: str = "in the file"
    bucket: "BucketAccess | None" = None
    web: "WebFiles | None" = None

    def __repr__(self) -> str:
        return f"<StorageAccount {self.file!r}: {self.container}, {self.credential}>"

    @property
    def container(self) -> BlobContainer:
        """The container's URL, without any credential."""
        if self.bucket is not None:
            return Bucket.at(self.container_name, self.blob_endpoint)
        if self.web is not None:
            return UrlList("", self.container_name, self.blob_endpoint)
        return BlobContainer(self.account_name, self.container_name, self.blob_endpoint)

    @property
    def is_source(self) -> bool:
        """Whether this is outside Azure, and only read."""
        return self.bucket is not None or self.web is not None

    @property
    def credential(self) -> str:
        """Which credential is used: ``sas``, ``key`` or ``identity``; of a source ``aws`` or ``anonymous``."""
        if self.is_source:
            return "aws" if self.bucket is not None and not self.bucket.anonymous else "anonymous"
        if self.auth:
            return self.auth
        if self.sas_token:
            return "sas"
        return "key" if self.account_key else "identity"

    @property
    def granting_credential(self) -> str:
        """Which credential signs a SAS for others: a key or an identity if there is one, else ``sas``.

        A SAS cannot be narrowed; a key in the same file can make a narrower one. A bucket has no SAS.
        """
        if self.is_source:
            return self.credential
        if self.auth:
            return self.auth
        if self.account_key:
            return "key"
        return "sas" if self.sas_token else "identity"


class FolderEntry(NamedTuple):
    """One ``*_folder`` key: the local folder ``prefix`` and the blob folder ``path`` are the same thing.

    Both are without slashes at their ends. ``mode`` (link, mount, download, upload) and ``include`` (the
    parts below the folder that a job needs) matter to jobs only, as do the ACT options ``datastore_name``,
    ``storage_type`` (blob or file), ``file_share`` and ``blob_cache_timeout`` (seconds), and
    ``blob_fuse_options``, words for blobfuse2. ``ignore`` are patterns, as in
    .gitignore, of files that no transfer touches. ``checkpoints`` are the sets of files that go up as one.
    ``modes`` and ``times`` keep executable bits and times of files in the metadata of their blobs.
    """

    prefix: str
    account: StorageAccount
    path: str
    mode: str | None = None
    include: tuple[str, ...] = ()
    datastore_name: str | None = None
    storage_type: str = "blob"
    file_share: str | None = None
    blob_cache_timeout: int | None = None
    ignore: tuple[str, ...] = ()
    blob_fuse_options: tuple[str, ...] = ()
    checkpoints: "CheckpointRule | None" = None
    modes: bool = False
    times: bool = False

    def __repr__(self) -> str:
        return f"<FolderEntry {self.prefix!r}: {self.remote}>"

    @property
    def key(self) -> str:
        """The key in ``config_param``."""
        return f"{self.prefix}_folder"

    @property
    def name(self) -> str:
        """The prefix as one word, fit for names in services: ``data_coco``."""
        return self.prefix.replace("/", "_")

    @property
    def remote(self) -> BlobLocation:
        """The blob folder."""
        return self.account.container.child(self.path)

    @property
    def is_output(self) -> bool:
        """Whether the folder holds jobs' results."""
        return self.prefix.startswith("output")


class CodeEntry(NamedTuple):
    """``code_path``: where ``init`` puts the code archive, or a blob folder of code without ``.zip``."""

    account: StorageAccount
    path: str
    datastore_name: str | None = None

    @property
    def remote(self) -> BlobLocation:
        return self.account.container.child(self.path)


class Docker(NamedTuple):
    """The image that jobs run in, its registry, and the container runtime (None: whichever is installed)."""

    image: str | None = None
    tag: str | None = None
    environment: str | None = None
    runtime: str | None = None
    address: str | None = None
    username: str | None = None
    password: Secret | None = None
    shm_size: str | None = None
    args: tuple[str, ...] = ()

    @property
    def reference(self) -> str | None:
        """``image:tag`` at its registry, as docker takes it."""
        return self.at_registry(f"{self.image}:{self.tag}" if self.tag else self.image) if self.image else None

    def at_registry(self, image: str) -> str:
        """The image with the address of the registry before it."""
        return image if not self.address or image.startswith(f"{self.address}/") else f"{self.address}/{image}"


class WorkspaceConfig(NamedTuple):
    """An Azure Machine Learning workspace. ``api_version`` None means the one that blobsync was tested with."""

    file: str
    subscription_id: str
    resource_group: str
    workspace_name: str
    management_endpoint: str = PUBLIC_MANAGEMENT_ENDPOINT
    api_version: str | None = None


class Written:
    """The source of a cluster: its file, what ``-p`` and ``-n`` changed, and both together, as typed."""

    def __init__(self, path: Path, overrides: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.overrides: Final = overrides
        self.values: Final = values


class JobRefusal(NamedTuple):
    """A key that jobs on the cluster's platform do not support, and the error of ``submit``."""

    path: tuple[str, ...]
    error: ConfigError


_NO_DOCKER = Docker()


class Cluster(NamedTuple):
    """One cluster file, with ``-p`` merged in and every ``${ENV}`` replaced that may stand there.

    ``file`` is shown relative to the project where it lies inside. ``folders`` are in the file's order.
    ``code`` is None where there is no ``code_path``. ``platform_given`` is False where the file does not say where
    jobs run: then nothing but ``local`` runs one. ``gpu_per_node`` and ``num_gpu`` are None where the file
    (or ``-p``) does not say. ``values`` holds every key as written, typed as ``docs/configuration.md`` says;
    :meth:`text` and its siblings read it by dotted path (``slurm.partition``). ``warnings`` are about the files;
    ``job_notes`` about keys that ask nothing of jobs; ``job_refusals`` are for those that jobs on the platform do not
    have. ``written`` and ``document``, which knows the line of each key, are None for clusters made by hand.
    """

    name: str
    file: str
    root: Path
    folders: tuple[FolderEntry, ...] = ()
    code: CodeEntry | None = None
    platform: str = "local"
    platform_given: bool = True
    experiment_name: str | None = None
    compute_target: str | None = None
    num_gpu: int | None = None
    gpu_per_node: int | None = None
    multi_process: bool = True
    use_custom_docker: bool = False
    docker: Docker = _NO_DOCKER
    env: Mapping[str, str] = MappingProxyType({})
    relay: str = "ask"
    zip_options: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    max_file_size: int | None = None
    values: Mapping[str, object] = MappingProxyType({})
    warnings: tuple[str, ...] = ()
    job_notes: tuple[str, ...] = ()
    job_refusals: tuple[JobRefusal, ...] = ()
    document: "Document | None" = None
    written: Written | None = None

    def __repr__(self) -> str:
        return f"<Cluster {self.name!r} of {self.file!r}: {self.platform}, {len(self.folders)} folders>"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The local prefixes that have a blob folder, in the file's order."""
        return tuple(entry.prefix for entry in self.folders)

    @contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Adds the key's line to errors that name a key of this cluster's file without a line."""
        try:
            yield
        except ConfigError as error:
            is_placed = not error.key or error.line or error.file not in (None, self.file)
            if self.document is None or is_placed or type(error) is not ConfigError:
                raise
            raise self.document.error(tuple(str(error.key).split(".")), error.detail, hint=error.hint) from error

    def written_in(self, key: str) -> str:
        """The file that has this key, or ``-p``."""
        return self.document.origin((key,)).file if self.document else self.file

    def error(self, path: tuple[str, ...], message: str, *, hint: str | None = None) -> ConfigError:
        """An error about a key, with its place."""
        if self.document is None:
            return ConfigError(message, file=self.file, key=".".join(path), hint=hint)
        return self.document.error(path, message, hint=hint)

    def folder(self, prefix: str) -> FolderEntry | None:
        """The entry of exactly this prefix."""
        return next((entry for entry in self.folders if entry.prefix == prefix), None)

    def value(self, path: str) -> object:
        """The value at a dotted path, None if there is none."""
        found: object = value_at(self.values, path.split("."))
        return found

    def text(self, path: str, default: str | None = None) -> str | None:
        """A string; numbers count as strings too, as users write ``version: 3``."""
        value = self.value(path)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return default
        return str(value)

    def number(self, path: str, default: int | None = None) -> int | None:
        """A whole number."""
        value = self.value(path)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, path: str) -> bool:
        """True or false."""
        return self.value(path) is True

    def texts(self, path: str) -> tuple[str, ...]:
        """A list of strings; a single string counts as a list of one."""
        value = self.value(path)
        if isinstance(value, str):
            return (value,)
        return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else ()

    def mapping(self, path: str) -> Mapping[str, object]:
        """A mapping, empty where there is none."""
        value = self.value(path)
        return value if isinstance(value, Mapping) else {}
