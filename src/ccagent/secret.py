"""Secrets come from files that nobody else can read, never from arguments."""

from __future__ import annotations

import os
import stat

from ccagent.errors import ConfigurationError

_LARGEST = 64 * 1024


def read_secret(path: str) -> str:
    """Give the first line of a file. The file must not be readable by others.

    Raises ConfigurationError, which never shows the content.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path}: not a regular file")
        if status.st_mode & stat.S_IRWXO:
            raise ConfigurationError(f"{path}: others can read this secret: chmod o= it")
        content = os.read(descriptor, _LARGEST)
    finally:
        os.close(descriptor)
    try:
        text = content.decode().splitlines()[:1]
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not text in UTF-8") from None
    if not text or not text[0].strip() or not text[0].isprintable():
        raise ConfigurationError(f"{path}: its first line holds no secret")
    return text[0].strip()
