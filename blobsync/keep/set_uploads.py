"""Uploads sets of files (checkpoints) as one, marks them, and removes old ones while a verified one stays.

A mark is written last: after all files of a set were seen in the container as they are here, and if they are unchanged
here since. A set that changes while it goes up gets no mark and goes again; one that is deleted meanwhile is dropped.
Of a job with several nodes, node 0 announces a set, every node uploads its own files once it has them all and says so,
and node 0 marks it. A node at its end says of which sets it has files, so that nobody waits for others; what node 0
leaves unmarked at its own end is marked by the node that answers last, or at the next start.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, LocalFileError, StorageError
from blobsync.base.formatting import count_text
from blobsync.base.locations import below
from blobsync.base.records import NamedTuple
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.keep import checkpoint_sets
from blobsync.keep.checkpoint_sets import FileSet, Heard, Judgement, Reach, Told
from blobsync.keep.keeper import Files
from blobsync.keep.marks import Mark, MarkedFile, Marks
from blobsync.keep.node_messages import Announced, Answer, Asked, NeverError, Notes, Over, gathered, mark_what_is_left
from blobsync.keep.set_files import FolderContent, files_of, unlike
from blobsync.local.files import hash_file
from blobsync.local.mark_complete import Request, requests_beside, requests_in

# How long the last round waits for other nodes (seconds).
LAST_SECONDS = 60.0
_POLL_SECONDS = 1.0
# The disks of other nodes may be new.
_LEFT_BY_ALL = Judgement(
    False, "it was there before the program started, and other nodes may not have their files of it"
)
_LEFT = Judgement(False, "it was there before the program started, and nothing but time says that it is whole")


class Uploaded(NamedTuple):
    """What became of the upload of a set: failures, and the ETag of each file that is verified at the destination."""

    failures: Sequence[FileFailure] = ()
    etags: Mapping[str, str] = {}


# Uploads the files of a set below its name in the container. Raises ``BlobsyncError`` if nothing can work.
UploadSet: TypeAlias = Callable[[FileSet, str], Uploaded]


class Writer(NamedTuple):
    """Who writes the sets of a folder: the job, its lineage and code, this node's number, and how many nodes there are.

    ``within`` is where the folder lies below its entry: a job's own one with ``output: per_job``. ``start`` tells the
    starts of a job with several nodes apart. ``earlier``: a restart may take
    marks of its lineage without a seal, which are of an earlier version.
    """

    run_id: str
    lineage: str
    code: str = ""
    node: int = 0
    within: str = ""
    start: str = ""
    earlier: bool = False


class FolderSets:
    """The sets of one folder; a :class:`blobsync.keep.keeper.Sets`."""

    def __init__(
        self,
        rule: CheckpointRule,
        folder: Path,
        marks: Marks,
        upload: UploadSet,
        writer: Writer,
        *,
        say: Callable[[str], None],
        notes: Notes,
        requests: Path | None = None,
        ignored: Callable[[str], bool] | None = None,
        nodes: Callable[[], Collection[int]] = lambda: (0,),
        since: Callable[[], float] = lambda: 0.0,
        brought: Callable[[], tuple[str, str] | None] = lambda: None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``requests`` is the folder in which programs say that a set is complete (None: beside it); ``nodes`` are the
        job's, of which node 0 marks. ``since`` is when the program was last about to start (since 1970): of what it
        left before that, when it was killed, stillness says nothing. ``brought`` are the lineage and the stored name
        of the set that was brought back for this start: another job may have written it, and it is there already."""
        self.rule, self._folder, self._marks, self._upload, self._writer = rule, folder, marks, upload, writer
        self._notes = notes
        self._say, self._requests, self._ignored, self._nodes = say, requests, ignored, nodes
        self._since, self._brought, self._now, self._sleep = since, brought, now, sleep
        self._brought_marks: Sequence[Mark] | None = None
        self._content = FolderContent(folder)
        # Sets as they were when they were marked, or were found to be marked.
        self._done: dict[str, FileSet] = {}
        self._verified: set[str] = set()
        self._told: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}
        self._heard: dict[str, _Heard] = {}
        # Announcements of other starts, by their versions.
        self._passed: dict[str, str] = {}
        self._answered: dict[str, str] = {}
        # What this node has told others of its files, as they were then.
        self._given: dict[str, FileSet] = {}
        # Sets that were there before, and have no mark.
        self._left: dict[str, FileSet] = {}
        # The folders with what DCP writes, in any set of this program.
        self._distributed = frozenset[str]()
        self._generation: int | None = None
        # The lineage's own marks, and all names that have one: listed once a round, whatever the number of sets.
        self._own: list[Mark] | None = None
        self._names: Collection[str] | None = None
        self._behind: list[FileSet] = []
        self._problem = ""
        self.ended_well = False
        # The sets that the last round left without one.
        self.unmarked: set[str] = set()

    def owns(self, path: str) -> bool:
        """Whether this file belongs to a set, or is a pointer to one."""
        inside = self._inside(path)
        return inside is not None and checkpoint_sets.set_of(self.rule, inside) is not None

    def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
        """Upload and mark the sets that are complete, and let old ones go. Raises nothing."""
        inside = {name: state for path, state in files.items() if (name := self._inside(path)) is not None}
        here = sorted(checkpoint_sets.sets_in(self.rule, inside), key=lambda one: one.changed_at)
        self._done = {name: done for name, done in self._done.items() if any(one.name == name for one in here)}
        self._look_again()
        try:
            with limited_cores(self.rule.upload_cores):
                failures = self._answer(here, last=last) if self._writer.node else self._lead(here, last=last)
        except BlobsyncError as error:
            return self._failed(FileFailure(self.rule.sets, error.code, error.message, error.hint or ""))
        except OSError as error:
            said = f"{error.filename}: {error.strerror}"
            return self._failed(FileFailure(self.rule.sets, FailureCode.LOCAL_FILE, said, ""))
        self._problem = ""
        return failures

    def _failed(self, failure: FileFailure) -> list[FileFailure]:
        """A round that could do nothing: said once, until the next one that can."""
        if self._problem != failure.message:
            self._problem = failure.message
            self._say(f"checkpoints {self.rule.sets}: {failure.message}; the next round tries again")
        return [failure]

    def behind(self, now: float) -> float | None:
        """How many seconds a complete set here has been without a mark; None if all have one."""
        return checkpoint_sets.seconds_behind(self._behind, self._is_done, now)

    def left_over(self, concerns: Callable[[str], bool]) -> list[FileSet]:
        """The sets here, among those that it ``concerns`` by their names, that no mark will name any more: while no
        program writes, half ones, and those of which nothing but time said that they were whole."""
        here = checkpoint_sets.sets_in(self.rule, dict(files_of(self._folder)))
        for one in here:
            self._distributed |= checkpoint_sets.distributed_in(one.files)
        unmarked = [one for one in here if concerns(one.name) and not self._is_marked(one)]
        return [one for one in unmarked if not self._judge(one, last=True).is_complete]

    # -- node 0 -------------------------------------------------------------------------------------------------

    def _lead(self, here: Sequence[FileSet], *, last: bool) -> list[FileFailure]:
        complete, failures = [], list[FileFailure]()
        for one in here:
            self._distributed |= checkpoint_sets.distributed_in(one.files)
        for one in here:
            if self._is_done(one):
                continue
            judged = self._judge(one, last=last)
            if judged.is_complete:
                complete.append(one)
            elif last:
                failures += self._leave_half(one, judged.missing)
        self._behind = complete
        # All of them before the first one goes up: that may take long, and other nodes may be at their end.
        begun = [(one, mark, self._announce(one, mark)) for one in complete if (mark := self._take(one)) is not None]
        if last:
            self._end({one.name: one for one in here})
        for one, mark, asked in begun:
            failures += self._carry_out(one, mark, asked)
        self._collect(last=last)
        self._remove_old_sets()
        return failures

    def _take(self, one: FileSet) -> Mark | None:
        """The mark that a complete set gets; None if it has one already, waits for one, or would be removed at once."""
        if self._is_marked(one):
            self._done[one.name] = one
            return None
        asked = self._waiting.get(one.name)
        if asked and asked.one.same_as(one):
            return None
        mark = self._mark_for(one, self._free_names(one)[0])
        if self.rule.rotates and not self._would_stay(one, mark):
            if one.name not in self._told:
                self._told.add(one.name)
                self._say(f"checkpoint {one.name} is not uploaded: the newer ones that stay are there")
            self._done[one.name] = one
            return None
        return replace(mark, stored=self._claimed_name(one))

    def _would_stay(self, one: FileSet, mark: Mark) -> bool:
        # Not the one that this start was given, whose place is where it was written.
        waiting = [each for each in self._behind if each is not one and not self._is_done(each)]
        complete = [self._mark_for(each, each.name) for each in waiting]
        return mark in checkpoint_sets.kept(self.rule, [*self._own_marks(), *complete, mark])

    def _announce(self, one: FileSet, mark: Mark) -> Asked | None:
        """Ask the other nodes for their files of a set; None: there are none."""
        nodes, who = tuple(sorted(self._nodes())), self._writer
        if len(nodes) < 2:
            return None
        token, told = secrets.token_hex(8), self._told_of(one.name)
        reach = checkpoint_sets.reach_of(self.rule, one, told, self._distributed)
        told_at = told.at if told else 0.0
        said = Announced(mark.set, mark.stored, token, reach, told_at, who.run_id, who.start)
        self._notes.say(said, mark.set)
        return Asked(one.name, mark, token, who.start, reach, nodes)

    def _carry_out(self, one: FileSet, mark: Mark, asked: Asked | None) -> Sequence[FileFailure]:
        began = self._now()
        files, failures = self._bring_up(one, mark.stored)
        if files is None:
            return failures
        mark = replace(mark, files=tuple(files))
        if asked is None:
            self._finish(one, mark, began)
        else:
            self._waiting[one.name] = _Waiting(one, replace(asked, mark=mark))
        return ()

    def _bring_up(self, one: FileSet, stored: str) -> tuple[list[MarkedFile] | None, Sequence[FileFailure]]:
        """Upload this node's files of a set and verify them; None if they cannot be marked."""
        uploaded = self._upload(one, stored)
        try:
            now = self._seen_again(one.name)
        except LocalFileError as error:
            self._say(f"checkpoint {one.name} gets no mark while it cannot be read: {error.message}")
            return None, [FileFailure(one.name, error.code, error.message, error.hint or "")]
        if now is None or not one.files.keys() <= now.files.keys():
            self._say(f"checkpoint {one.name} was deleted while it was read: dropped")
            return None, ()
        if not now.same_as(one):
            self._say(f"checkpoint {one.name} changed while it went up: no mark, it goes again")
            return None, ()
        if uploaded.failures:
            return None, uploaded.failures
        files = self._verify(one, stored, uploaded.etags)
        if files is None:
            failure = f"checkpoint {one.name} is not in the container as it is here"
            self._say(f"{failure}: no mark, it goes again")
            return None, [FileFailure(one.name, FailureCode.MD5_MISMATCH, failure, "it goes again in the next round")]
        if not self._is_unchanged(one):
            self._say(f"checkpoint {one.name} changed while it was checked: no mark, it goes again")
            return None, ()
        return files, ()

    def _verify(self, one: FileSet, stored: str, etags: Mapping[str, str]) -> list[MarkedFile] | None:
        """The files as a fresh listing of the container has them; None if one of them differs from the one here."""
        there = self._marks.listing(stored)
        files = []
        for path, state in sorted(one.files.items()):
            blob = there.get(path)
            if blob is None or blob.size != state.size or blob.md5 is None:
                return None
            if etags.get(path) != blob.etag:
                hashed = hash_file(self._path(one.name, path))
                if hashed is None or hashed.md5 != blob.md5:
                    return None
            files.append(MarkedFile(path, blob.size, blob.md5.hex(), blob.etag, self._writer.node))
        return files

    def _finish(self, one: FileSet, mark: Mark, began: float) -> None:
        is_written = self._marks.write(mark)
        self._look_again()
        if not is_written and mark not in self._own_marks():
            self._say(f"checkpoint {mark.stored} has got a mark from elsewhere: it goes again")
            return
        self._done[one.name] = one
        self.unmarked.discard(one.name)
        self._verified.add(mark.stored)
        seconds = self._now() - began
        size = f"{count_text(len(mark.files), 'file')}, {mark.size:,} bytes in {seconds:.1f} s"
        self._say(f"checkpoint {mark.stored} is complete in the container: {size}")

    def _collect(self, *, last: bool) -> None:
        """Mark the sets whose nodes have all answered; in the last round wait for them."""
        for name, waiting in self._waiting.items() if last else ():
            # Nothing writes here any more: from now on the node that answers last may mark it.
            if self._is_unchanged(waiting.one):
                self._notes.say(waiting.asked.left(), name)
        until = self._now() + (LAST_SECONDS if last else 0)
        while True:
            never = dict[str, str]()
            for name, waiting in list(self._waiting.items()):
                try:
                    self._collect_one(name, waiting)
                except NeverError as error:
                    never[name] = str(error)
            if never.keys() == self._waiting.keys() or self._now() >= until:
                break
            self._sleep(_POLL_SECONDS)
        for name in self._waiting if last else ():
            late = f"not all nodes have uploaded their files after {LAST_SECONDS:g} s; the last one marks it"
            self._say(f"checkpoint {name}: {never[name]}: no mark" if name in never else f"checkpoint {name}: {late}")
        self.unmarked.update(never if last else ())

    def _collect_one(self, name: str, waiting: _Waiting) -> None:
        """Mark a set if all nodes have answered. Raises ``NeverError`` if one never will."""
        try:
            mark = gathered(self._notes, waiting.asked)
            if mark is None:
                return
            why = "it changed" if not self._is_unchanged(waiting.one) else self._marks.mismatch(mark)
        except ValueError as error:
            why = str(error)
        del self._waiting[name]
        if why or mark is None:
            self._say(f"checkpoint {name} gets no mark: {why}; it goes again")
            return
        self._finish(waiting.one, mark, self._now())
        if self.rule.rotates:
            self._notes.forget(name)

    def _remove_old_sets(self) -> None:
        """Remove the sets that need not stay: first the mark, then the files."""
        if not self.rule.rotates or not self._verified:
            return
        for mark in checkpoint_sets.removable(self.rule, self._own_marks(), self._verified, self._marks.mismatch):
            self._marks.remove(mark)
            self._say(f"checkpoint {mark.stored} is removed from the container")

    def _leave_half(self, one: FileSet, missing: str) -> Sequence[FileFailure]:
        """The last round brings up what there is of a half set, without a mark, unless its name is marked."""
        if one.name in self._marked_names():
            self._say(f"checkpoint {one.name} is not complete ({missing}): the marked one stays as it is")
            return ()
        self._say(f"checkpoint {one.name} is not complete ({missing}): its files are uploaded, without a mark")
        self.unmarked.add(one.name)
        return self._upload(one, self._claimed_name(one)).failures

    # -- other nodes --------------------------------------------------------------------------------------------

    def _answer(self, here: Sequence[FileSet], *, last: bool) -> list[FileFailure]:
        """Upload this node's files of the sets that node 0 announced; in the last round wait for that."""
        self._behind = []
        began = self._now()
        until = began + (LAST_SECONDS if last else 0)
        by_name = {one.name: one for one in here}
        marked = {mark.set for mark in self._own_marks()} if last else set[str]()
        failures = self._offer(by_name, marked) if last and self.ended_well else []
        while True:
            # Nothing that comes later is the program's any more.
            now = began if last else self._now()
            # First this: what it announced was there before.
            is_over = last and self._notes.ended(self._writer.run_id, self._writer.start, 0) is not None
            found, unready = self._answer_all(by_name, now, last=last)
            failures += found
            unsaid = [one for one in here if one.name not in self._given and one.name not in marked]
            if not unsaid or is_over or self._now() >= until:
                break
            self._sleep(_POLL_SECONDS)
        if last:
            for one in unsaid:
                failures += self._leave_half(one, unready.get(one.name, "node 0 did not say that it is"))
            self._end(by_name)
            mark_what_is_left(self._notes, self._marks, self._writer.lineage, self._say)
        return failures

    def _answer_all(
        self, here: Mapping[str, FileSet], now: float, *, last: bool
    ) -> tuple[list[FileFailure], Mapping[str, str]]:
        """Answer what node 0 has announced; returns failures, and what is missing of the sets that are not ready."""
        failures, unready = list[FileFailure](), dict[str, str]()
        for name, heard in self._hear().items():
            if self._answered.get(name) == heard.etag:
                continue
            one = here.get(name)
            judged = self._judge_part(name, one, heard, now, last=last)
            if judged.is_complete:
                failures += self._answer_one(name, one, heard.said.stored, heard.said.token, heard.etag)
            else:
                unready[name] = judged.missing
        return failures, unready

    def _offer(self, here: Mapping[str, FileSet], marked: Collection[str]) -> list[FileFailure]:
        """Say unasked, at this node's end, which files it has of each set: node 0 may ask when nobody is here any more.

        Not of a set whose name is marked: node 0 gives that another one.
        """
        failures, taken = list[FileFailure](), self._marked_names()
        for name, one in here.items():
            known = self._given.get(name)
            if name in marked or name in taken or (known is not None and known.same_as(one)):
                continue
            told = self._told_of(name)
            if told is None and one.changed_at <= self._since():
                continue
            if checkpoint_sets.judge_part(
                self.rule, one, Heard(Reach.OWN, 0), self._content, self._now(), told=told, last=True, ended_well=True
            ).is_complete and self._marks.claim(self._writer.lineage, self._stored(name)):
                failures += self._answer_one(name, one, self._stored(name), "", "")
        return failures

    def _end(self, here: Mapping[str, FileSet]) -> None:
        """Say that this node is at its end, and of which sets it has files, or was told of some."""
        who = self._writer
        # Another node of an elastic job does not know how many there are.
        if not who.node and len(self._nodes()) < 2:
            return
        requests = requests_in(self._requests) if self._requests else requests_beside(self._folder)
        told = {os.path.relpath(each.path, os.path.realpath(self._folder)) for each in requests}
        whole = tuple(name for name, given in self._given.items() if name in here and given.same_as(here[name]))
        sets = tuple(sorted({*here, *(told - self._answered.keys())}))
        self._notes.say(Over(who.run_id, who.start, self.ended_well, sets, whole), who.run_id, who.node)

    def _hear(self) -> Mapping[str, _Heard]:
        """What node 0 has announced in this start, by the names of the sets."""
        who, listed = self._writer, dict(self._notes.sets(Announced))
        for name, etag in listed.items():
            known = self._heard.get(name)
            if etag == (known.etag if known else self._passed.get(name)):
                continue
            self._heard.pop(name, None)
            said = self._notes.said(Announced, name)
            if said is not None and (said.set, said.run_id, said.start) == (name, who.run_id, who.start):
                self._heard[name] = _Heard(etag, self._now(), said)
            else:
                # Of an earlier start, of an earlier job of the lineage, or nothing that node 0 wrote.
                self._passed[name] = etag
        return {name: self._heard[name] for name in listed if name in self._heard}

    def _judge_part(self, name: str, one: FileSet | None, said: _Heard, now: float, *, last: bool) -> Judgement:
        later = any(each.said.told_at > said.said.told_at for each in self._heard.values())
        nobody = not any(_requests(self._path(name), self._requests))
        heard = Heard(said.said.reach, now - said.since, went_on=later and nobody)
        told = self._told_of(name)
        if told is None and said.said.reach is not Reach.ALL and one is not None and one.changed_at <= self._since():
            return _LEFT
        return checkpoint_sets.judge_part(
            self.rule, one, heard, self._content, now, told=told, last=last, ended_well=self.ended_well
        )

    def _answer_one(
        self, name: str, one: FileSet | None, stored: str, token: str, etag: str = ""
    ) -> Sequence[FileFailure]:
        files = list[MarkedFile]()
        if one is not None:
            found, failures = self._bring_up(one, stored)
            if found is None:
                return failures
            files = found
        who = self._writer
        self._notes.say(Answer(stored, token, who.start, tuple(files)), name, who.node)
        self._answered[name] = etag
        if one is not None:
            self._given[name] = one
        return ()

    # -- inside -------------------------------------------------------------------------------------------------

    def _inside(self, path: str) -> str | None:
        """The path below the job's own folder; None outside of it."""
        within = self._writer.within
        if not within:
            return path
        return path[len(within) + 1 :] if path.startswith(f"{within}/") else None

    def _path(self, name: str, path: str = "") -> Path:
        return self._folder / name / path if path else self._folder / name

    def _stored(self, name: str) -> str:
        return below(self._writer.within, name)

    def _is_done(self, one: FileSet) -> bool:
        done = self._done.get(one.name)
        return done is not None and one.same_as(done)

    def _judge(self, one: FileSet, *, last: bool) -> Judgement:
        told = self._told_of(one.name)
        judged = checkpoint_sets.judge(
            self.rule,
            one,
            self._content,
            self._now(),
            told=told,
            last=last,
            ended_well=self.ended_well,
            others=self._distributed,
        )
        needed = checkpoint_sets.completing(self.rule, one, self._distributed)
        has_others = len(self._nodes()) > 1
        by_files = told is None and (checkpoint_sets.STILL in needed or has_others)
        if judged.is_complete and by_files and self._was_left(one):
            return _LEFT_BY_ALL if has_others else _LEFT
        return judged

    def _was_left(self, one: FileSet) -> bool:
        """Whether a set was there before the program started, and is no marked one that was brought back."""
        if one.changed_at > self._since():
            return False
        known = self._left.get(one.name)
        if known is None or not known.same_as(one):
            if self._is_marked(one):
                return False
            self._left[one.name] = one
        return True

    def _is_marked(self, one: FileSet) -> bool:
        """Whether it has a mark as it is here: of this lineage, or that of the set that was brought back."""
        marks = (*self._own_marks(), *self._marks_brought())
        return any(mark.set == one.name and self._equals(one, mark) for mark in marks)

    def _told_of(self, name: str) -> Told | None:
        """What programs on this node said about a set."""
        return told_of(self._path(name), self._requests, len(self._nodes()))

    def _look_again(self) -> None:
        """Forget which marks there are."""
        self._own = self._names = None

    def _own_marks(self) -> list[Mark]:
        if self._own is None:
            self._own = checkpoint_sets.fitting(self.rule, self._marks.of(self._writer.lineage))
        if self._generation is None:
            self._generation = 1 + max((mark.generation for mark in self._own), default=0)
        return self._own

    def _all_names(self) -> Collection[str]:
        """The names in the container that have a mark, whoever wrote it."""
        if self._names is None:
            self._names = self._marks.lineages().keys()
        return self._names

    def _marks_brought(self) -> Sequence[Mark]:
        """The mark of the set that was brought back, which is read once; it may have no seal of ours."""
        if self._brought_marks is None:
            brought = self._brought()
            mark = self._marks.at(*brought) if brought else None
            self._brought_marks = (mark,) if mark else ()
        return self._brought_marks

    def _marked_names(self) -> Collection[str]:
        lead = f"{self._writer.within}/" if self._writer.within else ""
        return {name.removeprefix(lead) for name in self._all_names()}

    def _free_names(self, one: FileSet) -> list[str]:
        """The names that a set may get: none that has a mark."""
        taken = self._all_names()
        names = [self._stored(name) for name in checkpoint_sets.stored_names(one.name, self._step(one), self._now())]
        return [*(name for name in names if name not in taken), f"{names[-1]}-{secrets.token_hex(2)}"]

    def _claimed_name(self, one: FileSet) -> str:
        """The first of them below which this lineage alone writes. Raises ``StorageError`` if there is none."""
        lineage = self._writer.lineage
        for name in self._free_names(one):
            # Another job of the lineage may have marked it in this round.
            if self._marks.claim(lineage, name) and self._marks.at(lineage, name) is None:
                return name
        raise StorageError(f"checkpoint {one.name} gets no name in the container that nobody else writes to")

    def _step(self, one: FileSet) -> int | None:
        """The step in a set's name, else in what the Trainer of Hugging Face says."""
        step = checkpoint_sets.step_of(one.name)
        if step is None and "trainer_state.json" in one.files:
            found = self._value(one, "trainer_state.json", "global_step")
            return int(found) if found is not None and 0 <= found < 10**18 else None
        return step

    def _value(self, one: FileSet, file: str, field: str) -> float | None:
        text = self._content.text(f"{one.name}/{file}") if file in one.files else None
        with suppress(ValueError, RecursionError):
            # Programs write NaN and Infinity, which are no values.
            return checkpoint_sets.value_at(json.loads(text), field) if text else None
        return None

    def _mark_for(self, one: FileSet, stored: str) -> Mark:
        values = {}
        if self.rule.keep_best:
            name, _ = checkpoint_sets.best_field(self.rule.keep_best)
            file, _, field = name.partition(":")
            if (value := self._value(one, file, field)) is not None:
                values[name] = value
        who = self._writer
        generation = self._generation or 1
        step = self._step(one)
        return Mark(one.name, stored, step, one.changed_at, who.run_id, who.lineage, generation, who.code, values)

    def _equals(self, one: FileSet, mark: Mark) -> bool:
        """Whether a set here has the content of a marked one; of several nodes' sets, this node's files."""
        marked = {each.path: each for each in mark.files}
        if mark.nodes == 1 and marked.keys() != one.files.keys():
            return False
        own = {each.path for each in mark.files if each.node == self._writer.node}
        if not own <= one.files.keys() <= marked.keys():
            return False
        if any(marked[path].size != state.size for path, state in one.files.items()):
            return False
        return not unlike(self._path(one.name), (marked[path] for path in one.files))

    def _is_unchanged(self, one: FileSet) -> bool:
        try:
            now = self._seen_again(one.name)
        except LocalFileError:
            return False
        return now is not None and now.same_as(one)

    def _seen_again(self, name: str) -> FileSet | None:
        """The set as it is now; None if nothing is there. Raises ``LocalFileError`` if not all of it can be read."""
        files = dict(files_of(self._path(name)))
        if self._ignored is not None:
            stored = self._stored(name)
            files = {path: state for path, state in files.items() if not self._ignored(below(stored, path))}
        return FileSet(name, files) if files else None


class _Waiting(NamedTuple):
    """A set of several nodes whose other nodes have not answered yet."""

    one: FileSet
    asked: Asked


class _Heard(NamedTuple):
    """What node 0 said of a set, in the version ``etag``, heard at ``since``."""

    etag: str
    since: float
    said: Announced


def told_of(path: Path, requests: Path | None, nodes: int = 1) -> Told | None:
    """What programs of this machine, one of so many ``nodes``, said about the set at ``path``; None: nothing.

    ``requests`` is the folder of their requests (None: they are beside the set).
    """
    real, said = os.path.realpath(path), list(_requests(path, requests))
    found = [each for each in said if each.path == real]
    if not found:
        return None
    ranks, at = max(each.ranks for each in found), max(each.at for each in found)
    went_on = len({each.rank for each in said}) == 1 and any(each.path != real and each.at > at for each in said)
    return Told(len({each.rank for each in found}), -(-ranks // max(1, nodes)), at, ranks, went_on)


def _requests(path: Path, requests: Path | None) -> Iterator[Request]:
    return requests_in(requests) if requests else requests_beside(path.parent)


@contextmanager
def limited_cores(cores: int) -> Iterator[None]:
    """Run this thread, and those that it starts, on so many cores. Linux alone can; elsewhere nothing is limited."""
    before = None
    with suppress(AttributeError, OSError):
        before = os.sched_getaffinity(0)
        # The last ones: programs that bind themselves begin with the first.
        os.sched_setaffinity(0, sorted(before)[-cores:])
    try:
        yield
    finally:
        if before:
            with suppress(OSError):
                os.sched_setaffinity(0, before)
