"""Leads links that leave docs/ to the repository, because the site has only docs/."""

import logging
import posixpath
import re
from pathlib import Path

log = logging.getLogger("mkdocs.hooks.site")
root = Path(__file__).resolve().parents[2]

code = re.compile(r"(^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ ]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
link = re.compile(r"(\]\()([^()\s]+)(\))")


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of a page, but not those in its code."""

    def rewrite(found):
        target, _, fragment = found[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), target))
        if path.startswith("docs/"):
            return found[0]
        if path.startswith("..") or not (root / path).exists():
            log.warning("%s links to %s, which is not in the repository", page.file.src_uri, found[2])
        to = f"{config.repo_url}/blob/main/{path}"
        return found[1] + (f"{to}#{fragment}" if fragment else to) + found[3]

    parts, last = [], 0
    for block in code.finditer(markdown):
        parts += [link.sub(rewrite, markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, link.sub(rewrite, markdown[last:])])
