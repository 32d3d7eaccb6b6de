"""Generator of debian/copyright: the licences of ccagent and its bundled modules.

    copyright.py LICENSE [HOME]

LICENSE is the licence of ccagent, HOME the tree of modules. The texts come from the modules.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple


class Module(NamedTuple):
    """A bundled module: its files, the short name of its licence, and the file with the text."""

    name: str
    files: str
    licence: str
    text: str
    holder: str = ""


MODULES = (
    Module("click", "click/*", "BSD-3-clause-click", "click-*.dist-info/licenses/LICENSE.txt"),
    Module("msgspec", "msgspec/*", "BSD-3-clause-msgspec", "msgspec-*.dist-info/licenses/LICENSE"),
    Module("nats-py", "nats/*", "Apache-2.0", "", "The NATS Authors"),
    Module("nvidia-ml-py", "pynvml.py", "BSD-3-clause-nvidia", "pynvml.py"),
    Module("paho-mqtt", "paho/*", "BSD-3-clause-eclipse", "paho_mqtt-*.dist-info/licenses/edl-v10"),
    Module("py-cpuinfo", "cpuinfo/*", "Expat-cpuinfo", "py_cpuinfo-*.dist-info/LICENSE"),
)
STORE = (
    Module("cffi", "cffi/* usr/lib/ccagent-store/_cffi_backend*", "MIT-0-cffi",
           "cffi-*.dist-info/licenses/LICENSE", "Armin Rigo, Maciej Fijalkowski"),
    Module("cryptography", "cryptography/*", "Apache-2.0", "", "Individual contributors"),
    Module("httptools", "httptools/*", "Expat-httptools", "httptools-*.dist-info/licenses/LICENSE"),
    Module("numpy", "numpy/* usr/lib/ccagent-store/numpy.libs/*", "BSD-3-clause-numpy",
           "numpy-*.dist-info/licenses/LICENSE.txt"),
    Module("orjson", "orjson/*", "MPL-2.0", "", "ijl"),
    Module("pycparser", "pycparser/*", "BSD-3-clause-pycparser",
           "pycparser-*.dist-info/licenses/LICENSE"),
)  # fmt: skip
"""The modules of the package ccagent-store."""

WEB = (
    Module("anyio", "anyio/*", "Expat-anyio", "anyio-*.dist-info/licenses/LICENSE"),
    Module("bokeh", "bokeh/*", "BSD-3-clause-bokeh", "bokeh-*.dist-info/licenses/LICENSE.txt"),
    Module("h11", "h11/*", "Expat-h11", "h11-*.dist-info/licenses/LICENSE.txt"),
    Module("idna", "idna/*", "BSD-3-clause-idna", "idna-*.dist-info/licenses/LICENSE.md"),
    Module("jinja2", "jinja2/*", "BSD-3-clause-jinja2",
           "jinja2-*.dist-info/licenses/LICENSE.txt"),
    Module("markupsafe", "markupsafe/*", "BSD-3-clause-markupsafe",
           "markupsafe-*.dist-info/licenses/LICENSE.txt"),
    Module("starlette", "starlette/*", "BSD-3-clause-starlette",
           "starlette-*.dist-info/licenses/LICENSE.md", "Encode OSS Ltd"),
    Module("typing-extensions", "typing_extensions.py", "PSF-2.0",
           "typing_extensions-*.dist-info/licenses/LICENSE", "Python Software Foundation"),
    Module("uvicorn", "uvicorn/*", "BSD-3-clause-uvicorn",
           "uvicorn-*.dist-info/licenses/LICENSE.md", "Encode OSS Ltd"),
)  # fmt: skip
"""The modules of the package ccagent-web."""

_GPL = re.compile(r"GNU GENERAL PUBLIC LICENSE\s+Version 3.*?why-not-lgpl\.html>\.", re.DOTALL)
"""Part of numpy's licence for the Fortran library. Debian requires a reference instead."""

_HEAD = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ccagent

Files: *
Copyright: 2026 The ccagent authors
License: Expat
"""
_KERNEL = """\
Files: usr/lib/ccagent/ccagent/machine/bpf/*.bpf.*
Copyright: 2026 The ccagent authors
License: GPL-2 or Expat
Comment: packaging/wheels.txt of the source has versions and hashes of the bundled modules below.
"""
_TAILS = {
    name: f"License: {name}\n On Debian systems the text is in /usr/share/common-licenses/{name}.\n"
    for name in ("Apache-2.0", "GPL-2", "MPL-2.0")
}


def read_licence(home: Path, module: Module) -> str:
    """Return the text of a module's licence; for a Python file its first comment."""
    (file,) = home.glob(module.text)
    text = _GPL.sub("The text is in /usr/share/common-licenses/GPL-3.", file.read_text("utf-8"))
    if file.suffix != ".py":
        return text
    lines = re.match(r"(?:#.*\n)+", text)
    return re.sub(r"(?m)^#+ ?", "", lines[0] if lines else "").strip() + "\n"


def field(text: str) -> str:
    """Return text as the continuation lines of a field."""
    return "".join(f" {line.rstrip() or '.'}\n" for line in text.strip().splitlines())


def copyright_of(text: str) -> str:
    """Return the first line of a licence with the copyright holder."""
    found = re.search(
        r"(?im)^\s*copyright (?:\(c\) )?(.*?)[.,]?(?:\s+all rights reserved\.?)?$", text
    )
    if found is None:
        sys.exit(f"no copyright in: {text[:80]}")
    return found[1]


def main() -> None:
    """Print debian/copyright."""
    own = Path(sys.argv[1]).read_text(encoding="utf-8")
    parts, texts = [_HEAD], [f"License: Expat\n{field(own)}"]
    if sys.argv[2:]:
        add_modules(Path(sys.argv[2]), parts, texts)
    sys.stdout.write("\n".join([*parts, *texts]))


def add_modules(home: Path, parts: list[str], texts: list[str]) -> None:
    """Add the paragraphs of the bundled modules and of the kernel programs."""
    modules = {"ccagent-store": STORE, "ccagent-web": WEB}.get(home.name, MODULES)
    if modules is MODULES:
        parts.append(_KERNEL)
    for module in modules:
        holder = module.holder
        if module.text:
            text = read_licence(home, module)
            holder = holder or copyright_of(text)
            texts.append(f"License: {module.licence}\n{field(text)}")
        parts.append(
            f"Files: usr/lib/{home.name}/{module.files}\nCopyright: {holder}\n"
            f"License: {module.licence}\nComment: {module.name}\n"
        )
    texts += [_TAILS[each] for each in sorted({module.licence for module in modules} & {*_TAILS})]
    if modules is MODULES:
        texts.append(_TAILS["GPL-2"])


if __name__ == "__main__":
    main()
