"""A small server that speaks as much of the Hugging Face Hub as `datasets` and a tokenizer need, from folders on disk.

It answers as the Hub does for datasets that are missing, gated or without the revision asked for. `tests/models` has
one of its own for checkpoints, which are fetched whole; here files are listed by folder and read in ranges.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "c0ffee" + "0" * 34
_REQUESTS = {
    name: re.compile(pattern)
    for name, pattern in {
        "check": r"/api/datasets/([^/]+/[^/]+)/auth-check",
        "info": r"/api/(?:datasets|models)/([^/]+/[^/]+)/revision/([^/]+)",
        "tree": r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)/?(.*)",
        "paths": r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/]+)",
        "file": r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)",
    }.items()
}


@dataclass
class Hub:
    """Folders by the name they are served under."""

    folders: dict[str, Path]
    gated: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""
    url: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the Hub's client ask here, with a cache of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer on a free port until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            path = unquote(urlparse(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            kind, match = next(
                ((kind, found) for kind, one in _REQUESTS.items() if (found := one.fullmatch(path))), ("", None)
            )
            if match is None or match[1] not in hub.folders:
                self._send(404, code="RepoNotFound")
            elif match[1] in hub.gated:
                self._send(403, code="GatedRepo")
            elif kind == "check":
                self._send(200)
            elif match[2] not in ("main", COMMIT):
                self._send(404, code="RevisionNotFound")
            elif kind == "file":
                self._send_file(hub.folders[match[1]] / match[3])
            elif kind == "info":
                self._send_json({"id": match[1], "sha": COMMIT, "private": False, "siblings": []})
            elif kind == "tree":
                deep = parse_qs(urlparse(self.path).query).get("recursive", [""])[0].lower() == "true"
                self._send_tree(hub.folders[match[1]], match[3], deep=deep)
            else:
                self._send_paths(hub.folders[match[1]], parse_qs(sent)["paths"])

        def _send_tree(self, root: Path, below: str, *, deep: bool) -> None:
            folder = root / below
            if not folder.is_dir():
                self._send(404, code="EntryNotFound")
                return
            self._send_json([_entry(root, path) for path in sorted(folder.rglob("*") if deep else folder.iterdir())])

        def _send_paths(self, root: Path, names: list[str]) -> None:
            self._send_json([_entry(root, root / name) for name in names if (root / name).exists()])

        def _send_json(self, content: object) -> None:
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _send_file(self, path: Path) -> None:
            if not path.is_file():
                self._send(404, code="EntryNotFound")
                return
            body = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if wanted is None:
                self._send(200, body, headers)
                return
            first, last = int(wanted[1]), min(int(wanted[2] or len(body) - 1), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            self._send(206, body[first : last + 1], headers)

        def _send(
            self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, *, code: str = ""
        ) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), **({"X-Error-Code": code} if code else {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _entry(root: Path, path: Path) -> dict[str, object]:
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
    content = path.read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
