"""Backup: export of all data that operators have stored to a file, and its import.

An import succeeds as a whole or changes nothing. Every record is checked before the first one is stored. Then, if the
node keeps its data on disk, the whole plan is written to a file next to the store. The plan is applied in slices, and
finally a row with its name is stored. If the node finds a plan without that row at its start, it applies the plan again
before it accepts clients::

    check ──► plan on disk ──► rows, slice by slice ──► the plan's name as a row ──► plan removed
                   └────────── a crash here: done again at the start ──────────┘
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.access.foreign_hashes import parse_hash
from taipan.broker.access.stored.rules import MAX_RULES, PUB, PUBSUB, SUB, StoredAclRule
from taipan.broker.server import Server
from taipan.broker.session.client_info import RESTORED, ClientInfo
from taipan.broker.session.memory_account import NORMAL
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.rules.import_check import ImportCheck

from ...configuration.known_secrets import SlowHashes
from ...configuration.settings import ManagementSettings
from ..alarm_targets import AlarmTargets
from ..alarm_thresholds import AlarmThresholds
from ..apps import App, Apps
from ..backpressure_slice import BackpressureSlice
from ..dashboard_users import DashboardUsers
from ..durable_answer import check_store_writable, wait_until_stored
from ..node_calls import Gathered, NodeCalls, NodeDoesNotAnswer
from ..refusal import MISSING, NOT_JSON, WRONG, Refusal, not_found
from ..users import Users
from .documents import Documents, env_of, filename_of, flag_of, is_blank
from .emqx_formats import AccessRule
from .export_file import ExportFile
from .files import BackupFiles, ExportRecord
from .import_changes import RULE_DETAILS, Change, ImportChanges
from .import_file import (
    DEFAULT_SECRET,
    MAX_ERRORS,
    OWN_LOGIN,
    REPLACE_OWN_LOGIN,
    ImportedDocument,
    ImportRefused,
    Plan,
    RecordError,
    left_out,
)
from .import_plan import PLAN_FILE, read_plan, written_plan
from .json_document import Document, JsonObject
from .passthrough import PassthroughRecords
from .retained_records import ExportedRetained

logger = logging.getLogger(__name__)

_LATEST: Final = "latest"
_CHUNK: Final = 1_048_576
_MAX_NAMED: Final = 100
"""Maximum number of applications, or users, that a log line lists."""
_MAX_COUNTS: Final = 1000
"""Maximum characters of a log line with counts of records by section."""
_ROWS_A_BATCH: Final = 1000
"""Number of rows after which the import waits for the disk: encoding a batch blocks the loop."""


class DryRun(msgspec.Struct):
    """The part of a dry run's changes to return: the position of the first one, and their number. ``asked``: this is a
    dry run."""

    asked: bool = False
    skip: int = 0
    limit: int = 0


class Asker(msgspec.Struct):
    """The dashboard user who runs an import, if any. ``replace``: this user also gets the file's password; otherwise
    the import skips the user's record."""

    username: str = ""
    replace: bool = False


class Imported(msgspec.Struct, array_like=True, frozen=True):
    """The plan that was applied last."""

    plan: str


_NO_DRY_RUN: Final = DryRun()
_NOBODY: Final = Asker()
"""The caller without a login: ``taipan-ctl`` on the machine."""


class Backup:
    """Exports and imports; one import or export runs at a time."""

    def __init__(
        self,
        server: Server,
        engine: RuleEngine,
        users: Users,
        apps: Apps,
        dashboard_users: DashboardUsers,
        alarm_targets: AlarmTargets,
        alarm_thresholds: AlarmThresholds,
        settings: ManagementSettings,
        calls: NodeCalls,
    ) -> None:
        self.files = BackupFiles(server.settings.node.data_dir, server.settings.node.name)
        self.passthrough = PassthroughRecords(server.tables)
        self._documents = Documents(server)
        self._server = server
        self._engine = engine
        self._users = users
        self._apps = apps
        self._dashboard_users = dashboard_users
        self._alarm_targets = alarm_targets
        self._alarm_thresholds = alarm_thresholds
        self._settings = settings
        self._calls = calls
        self._compared = (
            server, engine, apps, dashboard_users, alarm_targets, alarm_thresholds, self.passthrough,
        )  # fmt: skip
        calls.serve(self.listing_here, self.delete_here, self.size, self.piece)
        self._imported = server.tables.open("imported", Imported)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._interrupted: tuple[Path, str, Plan | None] | None = None
        server.on_recovered.append(self.on_recovered)
        server.before_clients.append(self.finish_interrupted)
        server.tables.export = self._export_before_join

    # ------------------------------------------------------------------ export

    async def export_file(self) -> ExportRecord:
        """Write a file and return its record. Raises Refusal."""
        async with self._lock:
            now = self._server.clock.wall()
            name = await asyncio.to_thread(self.files.new_name, now)
            export = ExportFile(
                self._server,
                self._engine,
                self._apps,
                self._dashboard_users,
                self._alarm_targets,
                self._alarm_thresholds,
                self.passthrough,
                self._settings.backup_retained,
                now,
            )
            size = await self._write(self.files.path / name, export.pieces(), now)
            logger.info("exported file=%s bytes=%s", name, size)
            return self.files.record(name, size, now)

    async def _export_before_join(self) -> str:
        record = await self.export_file()
        return str(self.files.path / record.filename)

    async def listing(self) -> tuple[list[ExportRecord], list[str]]:
        """Return the files of all nodes, oldest first, and the nodes that did not answer."""
        answers: Gathered[list[ExportRecord]] = await self._calls.everywhere(self.listing_here)
        records = [record for _, files in answers.found for record in files]
        return sorted(records, key=attrgetter("created_at")), self._calls.may_lack(answers.missing)

    async def listing_here(self) -> list[ExportRecord]:
        """Return the files of this node."""
        return await asyncio.to_thread(self.files.listing)

    async def delete(self, name: str) -> None:
        """Delete a file on this node, or on the first node that has it. Raises Refusal 102."""
        node, _ = await self.find(name)
        return await self._calls.on(node, self.delete_here, name)

    async def delete_here(self, name: str) -> None:
        """Delete a file of this node. Raises Refusal 102."""
        await asyncio.to_thread(self.files.delete, name)

    async def find(self, name: str) -> tuple[str, int]:
        """Return the first node that has the file, starting with this one, and the file's size. Raises Refusal 102."""
        self.files.place(name)
        size = await self.size(name)
        if size is not None:
            return self._calls.name, size
        answers: Gathered[int | None] = await self._calls.everywhere(self.size, name)
        for node, its_size in answers.found:
            if its_size is not None:
                return node, its_size
        if answers.missing:
            raise NodeDoesNotAnswer(answers.missing[0], f"does not answer, it may have file {name[:256]}")
        raise not_found("file", name[:256])

    async def size(self, name: str) -> int | None:
        """Return the size of a file of this node, if it exists."""
        try:
            opened, size = await asyncio.to_thread(self.files.open, self.files.place(name))
        except Refusal:
            return None
        os.close(opened)
        return size

    async def pieces(self, node: str, name: str, size: int) -> AsyncGenerator[bytes, None]:
        """Yield a file of a node until its end, or until the file is truncated during the transfer."""
        offset = 0
        if node != self._calls.name:
            while offset < size:
                piece: bytes = await self._calls.on(node, self.piece, name, offset)
                if not piece:
                    return
                yield piece[: size - offset]
                offset += len(piece)
            return
        opened, _ = await asyncio.to_thread(self.files.open, self.files.place(name))
        try:
            while offset < size and (data := await asyncio.to_thread(os.read, opened, min(size - offset, _CHUNK))):
                yield data
                offset += len(data)
        finally:
            os.close(opened)

    async def piece(self, name: str, offset: int) -> bytes:
        """Return some bytes of a file of this node. Raises Refusal 102."""
        opened, _ = await asyncio.to_thread(self.files.open, self.files.place(name))
        try:
            return await asyncio.to_thread(os.pread, opened, _CHUNK, offset)
        finally:
            os.close(opened)

    async def upload(self, chunks: Sequence[bytes | bytearray], given: Mapping[str, str] | None = None) -> ExportRecord:
        """Store a JSON object as a file and return its record. Raises Refusal.

        ``chunks``: an object with the text as ``file`` and the name as ``filename``. ``given`` overrides its
        members."""
        now = self._server.clock.wall()
        given = given or {}
        document = await self._documents.read([b"{}"] if is_blank(chunks) else chunks)
        name = given.get("filename")
        if name is None:
            name = filename_of(document) if document.has("filename") else ""
        path = self.files.new_place(name or await asyncio.to_thread(self.files.new_name, now))
        text = [given["file"]] if "file" in given else await self._documents.text(document, NOT_JSON)
        await self._documents.find(text)
        size = await self._write(path, (piece.encode() for piece in text), now)
        return self.files.record(path.name, size, now)

    async def _write(self, path: Path, pieces: Iterator[bytes], now: float | None) -> int:
        """Return the size of the file when it is on disk. Raises Refusal and leaves no file then."""
        work = BackpressureSlice(self._server)
        new = await asyncio.to_thread(self.files.begin, path)
        pending = bytearray()
        try:
            for piece in pieces:
                pending += piece
                if len(pending) >= _CHUNK:
                    data, pending = bytes(pending), bytearray()
                    await asyncio.to_thread(new.write, data)
                await work.checkpoint()
            await asyncio.to_thread(new.write, bytes(pending))
            await asyncio.to_thread(new.finish, now)
        except BaseException:
            new.abandon()
            raise
        return new.size

    # ------------------------------------------------------------------ import

    async def import_body(
        self,
        chunks: Sequence[bytes | bytearray],
        env: Mapping[str, object] | None = None,
        dry_run: DryRun = _NO_DRY_RUN,
        asker: Asker = _NOBODY,
    ) -> JsonObject | None:
        """Import a body in ``chunks``: an exported file, a download of EMQX 4.x, or the name of a file on this node.

        The result has these lists, if not empty: ``replaced_apps`` and ``replaced_users``, existing applications and
        dashboard users that now have the file's secret; ``left_out``, records that were not imported; ``disabled``,
        resources that cannot be used as they are; ``without_effect``, records that are kept only for the next export.
        A dry run returns the same lists and the number of records of each kind. Raises Refusal, and ``ImportRefused``
        if records are invalid.
        """
        document = await self._documents.read(chunks)
        given = env_of(document)
        wanted = {**given, **(env or {})}
        dry_run = msgspec.structs.replace(dry_run, asked=dry_run.asked or flag_of(document, "dry_run"))
        replace = asker.replace or flag_of(document, REPLACE_OWN_LOGIN)
        asker = msgspec.structs.replace(asker, replace=replace)
        if "version" not in document.members and "version" not in document.sections:
            if "file" in document.members:
                document = await self._documents.inner(document)
            elif "filename" in document.members:
                return await self.import_name(filename_of(document), wanted, dry_run, asker)
            else:
                raise Refusal(MISSING, "version is missing: expected an exported file, or the filename of one")
            wanted = {**env_of(document), **wanted}
        return await self._import(document, wanted, dry_run, asker)

    async def import_name(
        self, name: str, env: Mapping[str, object], dry_run: DryRun, asker: Asker
    ) -> JsonObject | None:
        """Import a file of the backup directory, or by its absolute path one inside the data directory."""
        if name.startswith("/"):
            path = await asyncio.to_thread(self.files.inside, name)
        else:
            path = self.files.place(name)
        return await self._import_file(path, env, dry_run, asker)

    async def import_path(
        self, path: str, env: Mapping[str, object], dry_run: DryRun = _NO_DRY_RUN
    ) -> JsonObject | None:
        """Import any file that the node can read. Raises Refusal."""
        if not path.startswith("/"):
            raise Refusal(WRONG, f"{path}: expected an absolute path")
        if "\0" in path:
            raise not_found("file", path.replace("\0", "\\0"))
        return await self._import_file(Path(os.path.realpath(path)), env, dry_run, _NOBODY)

    async def _import_file(
        self, path: Path, env: Mapping[str, object], dry_run: DryRun, asker: Asker
    ) -> JsonObject | None:
        data = await asyncio.to_thread(self.files.read, path, self._settings.max_import, "max_import")
        document = await self._documents.read([data])
        if "file" in document.members and "version" not in document.members:
            document = await self._documents.inner(document)
        return await self._import(document, {**env_of(document), **env}, dry_run, asker)

    async def _import(
        self, document: Document, env: Mapping[str, object], dry_run: DryRun, asker: Asker
    ) -> JsonObject | None:
        """Run the import to its end, even if the caller has disconnected."""
        task = asyncio.create_task(self._import_alone(document, env, dry_run, asker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _import_alone(
        self, document: Document, env: Mapping[str, object], dry_run: DryRun, asker: Asker
    ) -> JsonObject | None:
        async with self._lock:
            work = BackpressureSlice(self._server)
            max_payload = self._server.settings.retained.max_payload_size
            file = ImportedDocument(document, env, self._server.clock.now(), max_payload)
            for _ in file.read():
                await work.checkpoint()
            async for _ in file.check_engine(ImportCheck(self._engine)):
                await work.checkpoint()
            file.refuse_wrong()
            plan = file.plan
            plan.apps = [self._apps.as_imported(app) for app in plan.apps]
            await self._leave_out_known(plan, work)
            if asker.username and not asker.replace:
                await self._keep_login(plan, asker, work)
            await self._check_room(plan, work)
            told = await self._told(file, work)
            if dry_run.asked:
                answer: JsonObject | None = {**plan.counts(), **told, **await self._changes(plan, dry_run, work)}
            else:
                await self._carry_out(plan, told, work)
                if plan.carried:
                    told["carried"] = plan.counts()["carried"]
                answer = told if len(told) > 1 or told["replaced_apps"] else None
            for rows in (plan.users, plan.rules):
                while rows:  # in slices, because freeing all of them at once takes long
                    del rows[-_ROWS_A_BATCH:]
                    await work.checkpoint()
            return answer

    async def _leave_out_known(self, plan: Plan, work: BackpressureSlice) -> None:
        """Leave out users whose slow hash is the hash of a known secret. Only the first users are checked: dashboard
        users, then superusers, then all others in the order of the file."""
        slow = SlowHashes()
        known: set[int] = set()
        superusers = [user for user in plan.users if user.is_superuser]
        others = [user for user in plan.users if not user.is_superuser]
        for section, rows in (("users", plan.dashboard_users), ("auth_mnesia", superusers), ("auth_mnesia", others)):
            for row in rows:
                await work.checkpoint()
                if slow.wants(row.password) and await asyncio.to_thread(slow.is_known, row.password):
                    known.add(id(row))
                    plan.left_out.append(left_out(section, row.name, DEFAULT_SECRET))
        if known:
            plan.dashboard_users = [user for user in plan.dashboard_users if id(user) not in known]
            plan.users = [user for user in plan.users if id(user) not in known]
        if slow.not_tried:
            logger.info("import_hashes_not_tried count=%s reason=%s", slow.not_tried, DEFAULT_SECRET)

    async def _keep_login(self, plan: Plan, asker: Asker, work: BackpressureSlice) -> None:
        """Leave out the record that would give another password or role to the user who runs the import."""
        for user in plan.dashboard_users:
            await work.checkpoint()
            if user.name == asker.username and self._dashboard_users.is_replaced_by(user):
                plan.left_out.append(left_out("users", user.name, OWN_LOGIN))
                plan.dashboard_users = [each for each in plan.dashboard_users if each.name != asker.username]
                break

    async def _told(self, file: ImportedDocument, work: BackpressureSlice) -> JsonObject:
        """Return facts about an import that an operator should know in addition to its result."""
        plan = file.plan
        told: JsonObject = {"replaced_apps": await self._replaced_apps(plan, work)}
        replaced = [user.name for user in plan.dashboard_users if self._dashboard_users.is_replaced_by(user)]
        for name, rows in (
            ("replaced_users", replaced),
            ("left_out", plan.left_out[:MAX_ERRORS]),
            ("disabled", file.disabled),
            ("without_effect", file.without_effect),
        ):
            if rows:
                told[name] = rows
        return told

    async def _changes(self, plan: Plan, dry_run: DryRun, work: BackpressureSlice) -> JsonObject:
        """Return the change that each record would make, and the number of changes of each kind."""
        records: list[Change] = []
        totals: dict[str, dict[str, int]] = {}
        for index, change in enumerate(ImportChanges(*self._compared).of(plan)):
            counts = totals.setdefault(change.kind, {"create": 0, "change": 0, "same": 0, "remove": 0})
            counts[change.action] += 1
            if dry_run.skip <= index < dry_run.skip + dry_run.limit:
                records.append(change)
            await work.checkpoint()
        return {"records": records, "totals": totals}

    async def _replaced_apps(self, plan: Plan, work: BackpressureSlice) -> list[str]:
        """Return the existing applications that will be replaced: their users may need another secret afterwards."""
        last: dict[str, App] = {}
        for app in plan.apps:
            last[app.app_id] = app
            await work.checkpoint()
        return [app_id for app_id, app in last.items() if self._apps.is_replaced_by(app)]

    async def _check_room(self, plan: Plan, work: BackpressureSlice) -> None:
        """Raise Refusal if existing and imported records are too many together."""
        errors: list[RecordError] = []
        for subject, rules in _by_subject(plan.rules):
            there = self._server.stored_rules.of(*subject)
            if there and len(rules) + len(_left(there, rules)) > MAX_RULES:
                who = rules[0].name or "everybody"
                what = f"more than {MAX_RULES} rules of {who}, including the existing ones"
                errors.append(RecordError("acl_mnesia", 0, "", what))
            await work.checkpoint()
        for section, records in plan.carried.items():
            for each in records:
                self.passthrough.check(section, each)
                await work.checkpoint()
        if self._dashboard_users.would_lack_administrator(plan.dashboard_users):
            errors.append(RecordError("users", 0, "", "no dashboard user would remain an administrator"))
        for section, text in self._alarm_targets.lacks_room_for(plan.alarm_targets, plan.alarm_silences):
            errors.append(RecordError(section, 0, "", text))
        retained = self._server.broker.retained
        most = self._server.settings.retained.max_messages
        most_bytes = self._server.settings.retained.max_bytes
        new = grows = 0
        for record in plan.retained:
            new += retained.get(record.topic) is None
            grows += retained.grows_by(record.message(self._publisher(record.client_id, record.username)), record.topic)
            await work.checkpoint()
        if 0 < most < len(retained) + new:
            errors.append(RecordError("retained", 0, "", f"more than {most} messages (setting retained.max_messages)"))
        if 0 < most_bytes < retained.bytes + grows:
            what = f"more than {most_bytes} bytes of memory (setting retained.max_bytes)"
            errors.append(RecordError("retained", 0, "", what))
        if grows > 0 and self._server.broker.account.level > NORMAL:
            errors.append(RecordError("retained", 0, "", "no memory for them now (setting limits.memory)"))
        if errors:
            raise ImportRefused(errors[:1], len(errors))

    async def _carry_out(self, plan: Plan, told: JsonObject, work: BackpressureSlice) -> None:
        tables = self._server.tables
        durability = self._server.broker.durability
        check_store_writable(tables)
        name = os.urandom(16).hex()
        path = self.files.data_dir / PLAN_FILE
        if durability is not None:
            await self._write(path, written_plan(name, plan), None)
        # Written before the first change: if a crash interrupts the import after this, the next start completes it.
        apps, users = told["replaced_apps"], told.get("replaced_users", ())
        if apps:
            logger.info("import_replaces_apps count=%s apps=%s", len(apps), ",".join(apps[:_MAX_NAMED]))
        if users:
            logger.info("import_replaces_users count=%s users=%s", len(users), ",".join(users[:_MAX_NAMED]))
        for reason in (DEFAULT_SECRET, OWN_LOGIN):
            left = [f"{each.section}/{each.id}" for each in plan.left_out if each.reason == reason]
            if left:
                records = ",".join(left[:_MAX_NAMED])
                logger.warning("import_leaves_out count=%s records=%s reason=%s", len(left), records, reason)
        if plan.carried:
            counts = ",".join(f"{section}:{len(rows)}" for section, rows in plan.carried.items())
            logger.warning("import_without_effect records=%s", counts[:_MAX_COUNTS])
        changed: set[str] = set()
        for rows, _ in enumerate(self._steps(plan, changed), 1):
            if rows % _ROWS_A_BATCH == 0:
                # Trouble of the store is reported at the end. Until then the plan continues in memory, and the plan
                # itself is on disk.
                await tables.stored()
            await work.checkpoint()
        # First, because rules and resources may take long to start, or fail.
        await self._users.tell_connected(changed)
        await self._finish(name, plan)
        logger.info("imported %s", " ".join(f"{kind}={count}" for kind, count in plan.counts().items() if count))
        await wait_until_stored(tables)
        if durability is not None:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def on_recovered(self) -> None:
        """Apply a plan that a crash has interrupted."""
        path = self.files.data_dir / PLAN_FILE
        if self._server.store is None or not path.exists():
            return
        try:
            name, plan = read_plan(path.read_bytes())
        except (OSError, ValueError) as error:
            # The plan was written completely before any change, so this is damage. The store may or may not have been
            # changed.
            logger.error("import_plan_unreadable file=%s error=%s", path, error)
            path.rename(path.with_suffix(".damaged"))
            return
        latest = self._imported.get(_LATEST)
        done = latest is not None and latest.plan == name
        if not done:
            for _ in self._steps(plan, set()):
                pass
            logger.warning("import_continued file=%s", path)
        self._interrupted = (path, name, None if done else plan)

    async def finish_interrupted(self) -> None:
        """Apply the rule engine's part of a plan that ``on_recovered`` carries out, before any client is accepted."""
        if self._interrupted is None:
            return
        path, name, plan = self._interrupted
        self._interrupted = None
        if plan is not None:
            try:
                await self._finish(name, plan)
            except (RuleEngineError, Refusal) as error:
                logger.error("import_unfinished file=%s error=%s", path, error)
                return
        task = asyncio.get_running_loop().create_task(self._settle(path))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, path: Path) -> None:
        async with self._lock:
            if await self._server.tables.stored():
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _finish(self, name: str, plan: Plan) -> None:
        """Complete the plan: start the rule engine's part, and store the row that marks the plan as done."""
        await self._engine.adopt(plan.schemas, plan.resources, plan.engine_rules)
        self._imported.put(_LATEST, Imported(name))

    def _steps(self, plan: Plan, changed: set[str]) -> Iterator[None]:
        """Store the plan. Records that deny come before records that allow. Applying it twice has the same result as
        once.

        ``changed`` receives the names of users who have become superusers or are no longer superusers."""
        server = self._server
        for ban, has_kick in plan.bans:
            server.banned.put(server.banned.as_imported(ban, has_kick))
            yield
        for subject, rules in _by_subject(plan.rules):
            yield from self._store_rules(subject, rules)
        server.access.authorization.forget_decisions()
        for app in plan.apps:
            self._apps.put(self._apps.as_imported(app))  # one of a migration may have no scopes yet
            yield
        for dashboard_user in plan.dashboard_users:
            self._dashboard_users.put(dashboard_user)
            yield
        for section, records in plan.carried.items():
            yield from self.passthrough.put(section, records)
        for name, target in plan.alarm_targets:
            self._alarm_targets.put_target(name, target)
            yield
        for name, silence in plan.alarm_silences:
            self._alarm_targets.put_silence(name, silence)
            yield
        for name, threshold in plan.alarm_thresholds:
            self._alarm_thresholds.put(name, threshold)
            yield
        for record in plan.retained:
            self._retain(record)
            yield
        for user in plan.users:
            old = server.stored_users.get(user.kind, user.name)
            if user.is_superuser != (old is not None and old.is_superuser):
                changed.add(user.name)
            server.stored_users.put(user.kind, user.name, parse_hash(user.password), user.is_superuser, user.created_at)
            yield

    def _store_rules(self, subject: tuple[str, str], rules: list[AccessRule]) -> Iterator[None]:
        """Add the rules of the file before others. While rules are replaced, clients are never without them."""
        stored = self._server.stored_rules
        there = stored.of(*subject)
        if there and list(map(RULE_DETAILS, there)) == list(map(RULE_DETAILS, rules)):
            yield
            return
        left = _left(there, rules)
        for topic in dict.fromkeys(row.topic for row in there):
            stored.remove(*subject, topic)
        for rule in rules:
            stored.append(*subject, rule.topic, rule.action, rule.allow, rule.created_at, rule.listener)
            if not there:
                yield
        for row in left:
            stored.append(*subject, row.topic, row.action, row.allow, row.created_at, row.listener)
        if there:
            self._server.access.authorization.forget_decisions()
        yield

    def _retain(self, record: ExportedRetained) -> None:
        message = record.message(self._publisher(record.client_id, record.username))
        message.id = os.urandom(16).hex().upper()
        self._server.broker.retaining.retain(message)

    def _publisher(self, client_id: str | None, username: str | None) -> ClientInfo | None:
        if client_id is None:
            return None
        settings = self._server.settings
        zone = settings.listener_zones[0]
        return ClientInfo(settings.node.name, zone, client_id=client_id, username=username, proved_by=RESTORED)


def _by_subject(rules: list[AccessRule]) -> Iterator[tuple[tuple[str, str], list[AccessRule]]]:
    """Group the rules of a plan, which are ordered by subject."""
    for subject, same in groupby(rules, key=attrgetter("subject")):
        yield subject, list(same)


def _left(there: list[StoredAclRule], rules: list[AccessRule]) -> list[StoredAclRule]:
    """Return the existing rules of a subject that rules of the file do not replace: rules of other topics, or for
    another action."""
    replaced: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        replaced.setdefault((rule.topic, rule.listener), set()).update(
            (PUB, SUB) if rule.action == PUBSUB else (rule.action,)
        )
    left = []
    for row in there:
        actions = {PUB, SUB} if row.action == PUBSUB else {row.action}
        kept = actions - replaced.get((row.topic, row.listener), set())
        if kept:
            left.append(row if kept == actions else msgspec.structs.replace(row, action=kept.pop()))
    return left
