"""A small server that speaks what the hub's client asks for: the files of a revision, their sizes, their bytes.

It answers as the hub does for missing, private and gated models and unknown revisions, and can cut a file short.
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
from urllib.parse import unquote, urlparse

COMMIT = "c0ffee" + "0" * 34
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/(.+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """One model: the files of its only commit, which is its branch `main` and its tag `v1`."""

    files: dict[str, bytes]
    refused: tuple[int, str] | None = None
    """Status and error code of every answer."""
    gated: bool = False
    """Whether anyone may see what there is, but not read it."""
    cut: frozenset[str] = frozenset()
    """Files of which only the first half is sent."""


@dataclass
class Hub:
    """Repositories by name, and what was asked of them."""

    repositories: dict[str, Repository]
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the hub's client ask here, with a cache of its own."""
        online = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "0")
        return {**online, "HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


def repository_of(folder: Path, **more: object) -> Repository:
    """A repository with the files of a checkpoint folder."""
    return Repository({path.name: path.read_bytes() for path in folder.iterdir()}, **more)  # type: ignore[arg-type]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer on a free port until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlparse(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            match = _INFO.fullmatch(path) or _TREE.fullmatch(path) or _FILE.fullmatch(path)
            repository = hub.repositories.get(match[1]) if match else None
            if match is None or repository is None:
                self._refuse(404, "RepoNotFound")
            elif repository.refused:
                self._refuse(*repository.refused)
            elif match[2] not in ("main", "v1", COMMIT):
                self._refuse(404, "RevisionNotFound")
            elif repository.gated and match.re is _FILE:
                self._refuse(403, "GatedRepo")
            elif match.re is _FILE:
                self._send_file(repository, match[3], with_body=with_body)
            else:
                self._send_json(_info(match[1], repository) if match.re is _INFO else _tree(repository))

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send_json(self, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send_file(self, repository: Repository, name: str, *, with_body: bool) -> None:
            body = repository.files[name]
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            if with_body:
                self.wfile.write(body[start : len(body) // 2 if name in repository.cut else None])
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _info(name: str, repository: Repository) -> dict[str, object]:
    return {"id": name, "sha": COMMIT, "private": False, "siblings": [{"rfilename": file} for file in repository.files]}


def _tree(repository: Repository) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
        for name, body in repository.files.items()
    ]
