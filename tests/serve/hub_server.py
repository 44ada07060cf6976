"""A Hub on this machine: of the protocol of huggingface.co what creating, committing (LFS too) and downloading take."""

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """repositories: {name: {path: bytes}}. blobs: {sha256: bytes} that came by LFS. requests: (method, path) of all.

    datasets: as repositories. etag: in the place of every file's own. interrupts: end of a path at which whoever asks
    for it, this process, gets Ctrl-C before the answer.
    """

    def __init__(self):
        self.repositories, self.blobs, self.requests, self.private = {}, {}, [], set()
        self.datasets = {}
        self.endpoint, self.etag, self.interrupts = "", None, None

    def variables(self, folder):
        """Environment of a process that takes this for the Hub, and keeps what it fetches in `folder`."""
        own = {"HF_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        return own | {"HF_HOME": f"{folder}/hf"}


@contextlib.contextmanager
def hub_server():
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process may speak to."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a Hub of its own has LFS
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # which tests/conftest.py makes of the one outside
    with hub_server() as server:
        yield server


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

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _serve(self):
        hub, body, path = self.hub, self._body(), self.path.partition("?")[0]
        hub.requests.append((self.command, path))
        if hub.interrupts and path.endswith(hub.interrupts):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = "/".join(filter(None, (wanted.get("organization") or "user", wanted["name"])))
            if wanted.get("visibility") == "private" or wanted.get("private"):
                hub.private.add(name)
            status = 409 if name in hub.repositories else 200
            hub.repositories.setdefault(name, {})
            return self._answer(status, {"url": f"{hub.endpoint}/{name}", "id": name})
        if path == "/api/repos/delete":
            wanted = json.loads(body)
            del hub.repositories[f"{wanted['organization']}/{wanted['name']}"]
            return self._answer(value={})
        if path == "/api/validate-yaml":  # the library has the Hub look at a model card before it is sent
            return self._answer(value={"errors": [], "warnings": []})
        if match := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            hub.blobs[match[1]] = body
            assert hashlib.sha256(body).hexdigest() == match[1]
            return self._answer(value={})
        if path.startswith(("/api/datasets/", "/datasets/")):
            return self._serve_dataset(path, body)
        match = re.fullmatch(r"/(?:api/models/)?([\w.-]+/[\w.-]+?)(?:\.git)?(/.*)?", path)
        name, rest = match[1], match[2] or ""
        if name not in hub.repositories:
            return self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        files = hub.repositories[name]
        if rest.startswith("/preupload/"):
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer(value={"files": modes})
        if rest == "/info/lfs/objects/batch":
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.endpoint}/lfs/{each['oid']}", "header": {}}}}
                for each in json.loads(body)["objects"]
            ]
            return self._answer(value={"transfer": "basic", "objects": objects})
        if rest.startswith("/commit/"):
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    files[value["path"]] = hub.blobs[value["oid"]]
            files[".gitattributes"] = b"*.safetensors filter=lfs\n"
            return self._answer(value={"commitUrl": f"{hub.endpoint}/{name}/commit/{COMMIT}", "commitOid": COMMIT})
        if match := re.fullmatch(r"/resolve/[^/]+/(.+)", rest):
            if match[1] not in files:
                return self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            data = files[match[1]]
            return self._answer(
                body=data, ETag=f'"{hub.etag or hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=COMMIT
            )
        if rest in ("", "/revision/main", f"/revision/{COMMIT}"):
            siblings = [{"rfilename": path} for path in files]
            return self._answer(value={"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})
        return self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")

    def _serve_dataset(self, path, body):
        """Of data sets what the library datasets asks for."""
        match = re.fullmatch(r"(?:/api)?/datasets/([\w.-]+/[\w.-]+)(/.*)?", path)
        name, rest = match[1], match[2] or ""
        files = self.hub.datasets.get(name)
        if files is None:
            return self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        entries = [{"type": "file", "path": file, "size": len(data), "oid": COMMIT} for file, data in files.items()]
        if rest.startswith("/tree/"):
            return self._answer(value=entries if rest.count("/") == 2 else [])
        if rest.startswith("/paths-info/"):
            wanted = re.findall(rb"paths=([^&]+)", body) or [name.encode() for name in json.loads(body)["paths"]]
            return self._answer(value=[entry for entry in entries if entry["path"].encode() in wanted])
        if match := re.fullmatch(r"/resolve/[^/]+/(.+)", rest):
            if match[1] not in files:
                return self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            data, status, own = files[match[1]], 200, {}
            if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
                status, own = 206, {"Content_Range": f"bytes {first}-{last}/{len(data)}"}
                data = data[first : last + 1]
            return self._answer(status, body=data, ETag=f'"{COMMIT}"', X_Repo_Commit=COMMIT, **own)
        if rest in ("", "/revision/main", f"/revision/{COMMIT}"):
            siblings = [{"rfilename": file} for file in files]
            return self._answer(value={"id": name, "sha": COMMIT, "siblings": siblings})
        return self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve
