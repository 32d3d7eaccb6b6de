"""Requests to slurmrestd: login, version of the API, errors of answers, and the doctor's checks.

Sources: slurmrestd(8), slurm.schedmd.com/rest.html; answers of Slurm 22.05 and 24.05 to 25.11.
"""

from __future__ import annotations

import base64
import re
from http.client import HTTPException, responses
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from ccagent import PRODUCER, __version__
from ccagent.agents.slurm.rest import VERSION, SlurmSourceSettings, socket_path
from ccagent.agents.slurm.rest.forms import listed
from ccagent.config.duration import Duration
from ccagent.config.secret import read_secret
from ccagent.errors import CcagentError, ConfigurationError, ProgramError, UnparsableError
from ccagent.log import logger
from ccagent.machine.checks import Check, CheckResult
from ccagent.net.error_texts import hide_secrets
from ccagent.net.http_client import HttpConnection
from ccagent.net.tls import make_tls_context
from ccagent.net.urls import Server, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


NEWEST = 46
OLDEST = 38
"""The versions v0.0.N whose forms are known, of Slurm 22.05 to 26.11. v0.0.37 gives wrong times."""

_LARGEST_ANSWER = 512 * 1024 * 1024
_PORTS = {"http": 6820, "https": 443}
"""Default ports: that of slurmrestd, and that of a proxy with TLS."""

_OK = 200
_NOT_FOUND = 404
_REFUSED = frozenset({401, 403, 511})
_AUTHENTICATION = 1007
"""SLURM_PROTOCOL_AUTHENTICATION_ERROR of slurm_errno.h."""

_NOTHING_FOUND = 9003
"""ESLURM_REST_EMPTY_RESULT: an error of an answer with an empty list."""

_VERSIONS = re.compile(rf"/(slurm|slurmdb)/({VERSION})/jobs".encode())
_UNDECODABLE = (msgspec.DecodeError, RecursionError)
"""Errors of malformed JSON, and of JSON that is nested too deeply."""

_SURROGATES = re.compile("[\udc80-\udcff]")

_SECONDS = Duration("5s")
_SUBJECTS = {
    "slurm": "controller of Slurm, by slurmrestd",
    "slurmdb": "accounting of Slurm, by slurmrestd",
}


class _Head(msgspec.Struct):
    """The part of an answer besides its records; null in some versions."""

    errors: list[dict[str, Any]] | None = None


class RestClient:
    """Asks one slurmrestd. The token is read for each request, so a new one is used at once."""

    def __init__(self, settings: SlurmSourceSettings, complain: Callable[[str], None]) -> None:
        self._settings = settings
        self._complain = complain
        self._place = settings.url
        self._prefix = ""
        self._connection: HttpConnection | None = None
        self._version: str = settings.api_version

    def version(self) -> str:
        """Return the version of the API, the newest one that both sides know."""
        if not self._version:
            self._version = self._find_version()
            logger.debug("%s: API %s", self._place, self._version)
        return self._version

    def records(
        self, part: str, name: str, *, where: str = "", query: Iterable[tuple[str, str]] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield the records of the list `name` of an answer, one decoded at a time.

        part: slurm or slurmdb. A malformed record is reported and skipped. Raise ProgramError if
        slurmrestd or Slurm does not answer, UnparsableError if the answer has no such list.
        """
        path = f"/{part}/{self.version()}/{where or name}"
        # slurmrestd takes unreserved characters only.
        terms = "&".join(f"{key}={quote(value, safe='')}" for key, value in query)
        if terms:
            path += f"?{terms}"
        body = self._get(path)
        try:
            raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(name)
            found = msgspec.json.decode(raw, type=list[msgspec.Raw]) if raw is not None else None
        except _UNDECODABLE as error:
            raise UnparsableError(
                f"slurmrestd {self._place}: {path.partition('?')[0]} is not JSON of Slurm: {error}"
            ) from error
        if found is None:
            raise UnparsableError(
                f"slurmrestd {self._place}: {path.partition('?')[0]}: no {name} in the answer"
            )
        del body
        for each in found:
            try:
                record = msgspec.json.decode(each)
            except _UNDECODABLE as error:
                record = error
            if isinstance(record, dict):
                yield record
            else:
                self._complain(f"slurmrestd: one of {name} is skipped: not a record")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> HttpConnection:
        """Return the connection. Raise ConfigurationError for an invalid certificate or key."""
        if self._connection is None:
            settings = self._settings
            server: Server | str = socket_path(settings)
            context = None
            if not server:
                target = split_url(settings.url)
                server = Server(target.hostname or "", target.port or _PORTS[target.scheme])
                self._prefix = target.path.rstrip("/")
                context = make_tls_context(settings) if target.scheme == "https" else None
            seconds = settings.command_time_limit.seconds
            self._connection = HttpConnection(server, context, seconds, largest=_LARGEST_ANSWER)
        return self._connection

    def _find_version(self) -> str:
        """Return the newest known version of the server's own description.

        Prefer a version that both parts of the API have.
        """
        body = self._get("/openapi/v3").replace(b"\\/", b"/")
        found: dict[bytes, set[str]] = {b"slurm": set(), b"slurmdb": set()}
        for part, version in _VERSIONS.findall(body):
            found[part].add(version.decode())
        controller, accounting = found.values()
        served = controller & accounting or controller | accounting
        known = [text for text in served if OLDEST <= int(text.rpartition(".")[2]) <= NEWEST]
        if not known:
            raise ProgramError(
                f"slurmrestd {self._place}: none of its API versions is known "
                f"({', '.join(sorted(served)) or 'it names none'}): set api-version"
            )
        return max(known, key=lambda text: int(text.rpartition(".")[2]))

    def _get(self, path: str) -> bytes:
        """Return the body of a success. Raise ProgramError for anything else."""
        headers, secrets = self._headers()
        connection = self._connect()
        place = f"slurmrestd {self._place}"
        shown = path.partition("?")[0]
        try:
            answer = connection.get(self._prefix + path, headers)
        except (HTTPException, OSError, UnicodeError) as error:
            reason = connection.explain(error, secrets)
            raise ProgramError(f"{place}: {reason}") from None  # the cause may repeat a secret
        if len(answer.body) >= _LARGEST_ANSWER:
            self.close()
            raise ProgramError(
                f"{place}: {shown} has more than {_LARGEST_ANSWER >> 20} MiB: lower max-catch-up"
            )
        body = _repair_utf8(answer.body)
        problems = list(_problems(body))
        numbers = {number for number, _ in problems}
        detail = "; ".join(text for _, text in problems) or (
            "" if body.startswith(b"{") else body.decode()
        )
        detail = hide_secrets(detail, secrets, (self._place,))
        if answer.status in _REFUSED or _AUTHENTICATION in numbers:
            fix = "renew the token in jwt-file" if self._settings.jwt_file else "set jwt-file"
            raise ProgramError(f"{place}: the login is refused ({detail}): {fix}")
        if answer.status == _NOT_FOUND and not body.startswith(b"{"):
            text = f"{place}: {shown} is not served: set api-version"
            self._version = self._settings.api_version  # Slurm may have been upgraded
            raise ProgramError(text)
        if numbers == {_NOTHING_FOUND}:
            return body
        if answer.status != _OK or (problems and not _has_records(body)):
            status = f"{answer.status} {responses.get(answer.status, '')}".strip()
            text = f"{place}: {shown}: {status}: {detail}".rstrip(": ")
            hint = _expiry_hint(secrets)
            raise ProgramError(f"{text}{hint}")
        if problems:
            self._complain(f"{place}: {shown}: part of the answer is missing: {detail}")
        return body

    def _headers(self) -> tuple[dict[str, str], list[str]]:
        """Return the headers of a request, and the secrets in them. Raise ConfigurationError."""
        settings = self._settings
        headers = {"Accept": "application/json", "User-Agent": f"{PRODUCER}/{__version__}"}
        token = read_secret(settings.jwt_file) if settings.jwt_file else ""
        # The output of `scontrol token` may be stored as it is.
        token = token.removeprefix("SLURM_JWT=")
        if not token.isascii():
            raise ConfigurationError(f"{settings.jwt_file}: a token is ASCII")
        user = settings.user or _claims(token).get("sun", "")
        if not (isinstance(user, str) and user.isascii() and user.isprintable()):
            raise ConfigurationError(f"{settings.jwt_file}: its user is not a name in ASCII")
        if user:
            headers["X-SLURM-USER-NAME"] = user
        if token:
            headers["X-SLURM-USER-TOKEN"] = token
        return headers, [token] if token else []


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT (RFC 7519), unverified; nothing for another text."""
    try:
        payload = token.split(".")[1]
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return msgspec.json.decode(text, type=dict[str, Any])
    except (IndexError, ValueError, *_UNDECODABLE):
        return {}


def _expiry_hint(secrets: Iterable[str]) -> str:
    """Return a hint if the token has expired: Slurm before 24.05 does not name this cause."""
    import time

    for token in secrets:
        expires = _claims(token).get("exp")
        if isinstance(expires, int | float) and expires < time.time():
            return " (the token in jwt-file has expired)"
    return ""


def _problems(body: bytes) -> Iterator[tuple[int, str]]:
    """Yield number and text of the errors in an answer."""
    try:
        head = msgspec.json.decode(body, type=_Head)
    except _UNDECODABLE:
        return
    for each in head.errors or ():
        number = each.get("error_number", each.get("errno", 0))
        texts = (each.get(name) for name in ("description", "error", "source"))
        text = ", ".join(dict.fromkeys(str(text) for text in texts if text))
        yield number if isinstance(number, int) else 0, text or "an error without a text"


def _has_records(body: bytes) -> bool:
    """Return whether an answer with errors has records nevertheless."""
    try:
        parts = msgspec.json.decode(body, type=dict[str, Any])
    except _UNDECODABLE:
        return False
    return any(listed(part) for name, part in parts.items() if name not in {"errors", "warnings"})


def _repair_utf8(body: bytes) -> bytes:
    r"""Return valid UTF-8: an invalid byte of a user's text becomes `\xff`, escaped for JSON."""
    if body.isascii():
        return body
    try:
        body.decode()
    except UnicodeDecodeError:
        text = body.decode("utf-8", "surrogateescape")
        return _SURROGATES.sub(lambda found: rf"\\x{ord(found[0]) - 0xDC00:02x}", text).encode()
    return body


def check_rest(settings: SlurmSourceSettings, parts: Sequence[str]) -> Iterator[Check]:
    """Yield a check of each part of the API, slurm or slurmdb. The queries are small."""
    quick = msgspec.structs.replace(settings, command_time_limit=_SECONDS)
    for part in parts:

        def find(part: str = part) -> CheckResult:
            return _find(quick, part)

        yield Check("slurm", _SUBJECTS[part], find, "all of it", is_vital=True, is_query=True)


def _find(settings: SlurmSourceSettings, part: str) -> CheckResult:
    client = RestClient(settings, lambda _: None)
    name = "clusters" if part == "slurmdb" else "pings"
    where = "clusters" if part == "slurmdb" else "ping"
    try:
        count = sum(1 for _ in client.records(part, name, where=where))
        version = client.version()
    except CcagentError as error:
        return CheckResult("problem", str(error), "check slurmrestd, url and jwt-file")
    finally:
        client.close()
    return CheckResult("good", f"{settings.url} answers, API {version}, {name}: {count}")
