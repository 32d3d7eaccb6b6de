"""Secrets, read from private files or systemd credentials, never from arguments."""

from __future__ import annotations

import os
import stat

from ccagent.errors import ConfigurationError

_LARGEST = 64 * 1024
_CREDENTIAL = "credential:"


def secret_path(place: str) -> str:
    """Return the file of a secret: a path, or `credential:NAME` for a systemd credential.

    Source: systemd.exec(5), LoadCredential=. Raise ConfigurationError without this credential.
    """
    if not place.startswith(_CREDENTIAL):
        return place
    name = place.removeprefix(_CREDENTIAL)
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise ConfigurationError(f"{place}: no credentials: the unit has no LoadCredential=")
    if not name or "/" in name or name in {".", ".."}:
        raise ConfigurationError(f"{place}: not the name of a credential")
    return os.path.join(directory, name)


def read_secret(place: str) -> str:
    """Return the first line of a secret. Its file must not be readable by others.

    Raise ConfigurationError if it can't be read. The error never contains the content.
    """
    text = secret_text(place).splitlines()[:1]
    if not text or not text[0].strip() or not text[0].isprintable():
        raise ConfigurationError(f"{place}: its first line holds no secret")
    return text[0].strip()


def secret_text(place: str) -> str:
    """Return the whole text of a secret. Raise ConfigurationError as `read_secret` does."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(secret_path(place), flags)
    except OSError as error:
        raise ConfigurationError(f"{place}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{place}: not a path") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{place}: not a regular file")
        if status.st_mode & stat.S_IRWXO:
            raise ConfigurationError(f"{place}: others can read this secret: chmod o= it")
        return os.read(descriptor, _LARGEST).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{place}: not text in UTF-8") from error
    except OSError as error:
        raise ConfigurationError(f"{place}: {error.strerror}") from error
    finally:
        os.close(descriptor)
