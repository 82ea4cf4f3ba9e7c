"""An ES module and all that it imports as one text, for kernels: there a widget has no folder to import from.

In the static page browsers load the files as they are. The text holds each file once, after those that it imports, as
a function that is given what the file imports and returns what it exports. So a file that two others import is
evaluated once, and its names meet no others. Files keep to these forms, each at the start of a line::

    import { make, draw as paint } from "./shared/dom.mjs";
    export function …    export const one = …    export class …    export { one, two as three };    export default …

A function or class that is the default gets its name in a line before. No cycles, no ``import()``, no ``import.meta``,
no ``await`` outside of functions; no line of a comment or a text begins with "import" or "export".
"""

from __future__ import annotations

import re
from pathlib import Path

FORM = re.compile(r"""(?mx) ^(?:
        import\s\{(?P<names>[^{}]*)\}\sfrom\s"(?P<file>\.{1,2}/[^"]+)";$
      | export\s\{(?P<listed>[^{}]*)\};$
      | (?P<default>export\sdefault\s)(?!function\b|class\b|async\b)
      | export\s(?=(?:(?:async\s)?function\*?|const|class)\s(?P<name>[\w$]+))
      | (?P<unknown>[ \t]*(?:import|export)\b.*|.*\bimport\s*[.(].*)
    )""")  # fmt: skip

Made = tuple[
    str, dict[str, str]
]  # of a file: its variable; what it exports, by the name outside the name inside


def bundle(entry: Path) -> str:
    """The text of a module that imports nothing and has the default export of the file ``entry``.

    Raises ValueError with file and line for a form that is not known, for a file that is missing, outside of the folder
    of ``entry`` or in a cycle, and for a name that a file does not export.
    """
    made = _Bundle(entry.resolve().parent)
    variable, _ = made.add(entry.resolve(), ())
    return "\n".join([*made.texts, f"export default {variable}.default;\n"])


class _Bundle:
    def __init__(self, root: Path):
        self.root, self.texts = root, list[str]()
        self.done: dict[Path, Made] = {}

    def add(self, path: Path, importers: tuple[Path, ...]) -> Made:
        """Append a file, after those that it imports."""
        text, given, own = path.read_text(encoding="utf-8"), list[tuple[str, str]](), dict[str, str]()
        name = path.relative_to(self.root).as_posix()

        def rewrite(form: re.Match[str]) -> str:
            where = f"{name}:{text.count(chr(10), 0, form.start()) + 1}"
            if form["unknown"]:
                raise ValueError(f"{where}: a form that the bundle does not know: {form['unknown'].strip()}")
            if form["file"]:
                given.append(self.take(form, (*importers, path), where))
            elif form["listed"]:
                own.update({public: inside for inside, public in _pairs(form["listed"])})
            else:
                own[form["name"] or "default"] = form["name"] or "$default"
            return "const $default = " if form["default"] else ""

        body = FORM.sub(rewrite, text).strip()
        parameters, arguments = (", ".join(part[i] for part in given) for i in (0, 1))
        returned = ", ".join(f"{public}: {inside}" for public, inside in own.items())
        self.done[path] = (variable := f"$module{len(self.done)}", own)
        head = f"// {name}\nconst {variable} = (({parameters}) => {{"
        self.texts.append(f"{head}\n{body}\nreturn {{ {returned} }};\n}})({arguments});\n")
        return self.done[path]

    def take(self, form: re.Match[str], importers: tuple[Path, ...], where: str) -> tuple[str, str]:
        """What an import takes, as a pattern, and the variable that it takes it from."""
        target, names = (importers[-1].parent / form["file"]).resolve(), _pairs(form["names"])
        if not target.is_file() or not target.is_relative_to(self.root):
            raise ValueError(f"{where}: there is no {form['file']} in the folder of the widgets")
        if target in importers:
            raise ValueError(f"{where}: {form['file']} imports this file, in a cycle")
        variable, offered = self.done.get(target) or self.add(target, importers)
        if missing := [name for name, _ in names if name not in offered]:
            raise ValueError(f"{where}: {form['file']} does not export {', '.join(missing)}")
        return f"{{ {', '.join(f'{name}: {local}' for name, local in names)} }}", variable


def _pairs(names: str) -> list[tuple[str, str]]:
    """ "one, two as three" as [("one", "one"), ("two", "three")]."""
    pairs = [name.split(" as ") for name in re.split(r"\s*,\s*", names.strip()) if name]
    return [(pair[0], pair[-1]) for pair in pairs]
