"""A Hub on this machine: of the protocol of huggingface.co what downloading takes."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """repositories: {name: {path: bytes}} of models and data sets. requests: paths of all."""

    def __init__(self):
        self.repositories = {}
        self.requests = []
        self.endpoint = ""

    def variables(self, folder):
        """Environment of a process that takes this for the Hub, and keeps what it fetches in
        `folder`.
        """
        variables = {"HF_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        return variables | {"HF_HOME": f"{folder}/hf"}


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process may speak to."""
    # tests/conftest.py cuts off the hub outside.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    found = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": found}))
    found.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_arguments):
        pass

    def _answer(self, status=200, value=None, body=None, **headers):
        data = json.dumps(value).encode() if body is None else body
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.hub.requests.append(path)
        name, rest = re.fullmatch(
            r"(?:/api)?(?:/datasets|/models)?/([\w.-]+/[\w.-]+)(/.*)?", path
        ).groups("")
        files = self.hub.repositories.get(name)
        if files is None:
            return self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if match := re.fullmatch(r"/resolve/[^/]+/(.+)", rest):
            return self._answer_file(files.get(match[1]))
        entries = [
            {"type": "file", "path": file, "size": len(data), "oid": COMMIT}
            for file, data in files.items()
        ]
        if rest.startswith("/tree/"):
            return self._answer(value=entries if rest.count("/") == 2 else [])
        if rest.startswith("/paths-info/"):
            wanted = re.findall(rb"paths=([^&]+)", body) or [
                name.encode() for name in json.loads(body)["paths"]
            ]
            return self._answer(
                value=[entry for entry in entries if entry["path"].encode() in wanted]
            )
        if rest in ("", "/revision/main", f"/revision/{COMMIT}"):
            siblings = [{"rfilename": file} for file in files]
            return self._answer(value={"id": name, "sha": COMMIT, "siblings": siblings})
        return self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")

    def _answer_file(self, data):
        if data is None:
            return self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Repo_Commit": COMMIT}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first = int(found[1])
            last = min(int(found[2] or len(data) - 1), len(data) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            return self._answer(206, body=data[first : last + 1], **headers)
        return self._answer(body=data, **headers)

    do_GET = _serve  # noqa: N815, as http.server calls it
    do_HEAD = _serve  # noqa: N815, as http.server calls it
    do_POST = _serve  # noqa: N815, as http.server calls it
