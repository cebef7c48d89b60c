"""A stand-in for W&B's server, with as much of it as a run needs: it says how far a run got, and takes its rows; and as
much as a dashboard needs: it has one account and one project, and keeps workspaces."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWNER = "someone"
PROJECT = {"id": "p", "name": "sharder", "entity": {"id": "e", "name": OWNER}}
PROJECT_IN_FULL = {
    **{"__typename": "Project", "id": "p", "name": "sharder", "entityName": OWNER, "user": None},
    **{"createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False},
}


def view_id(name: str) -> str:
    return f"id of {name}"


class Server(ThreadingHTTPServer):
    """`history`: run id -> lines, each a row as JSON, in the order in which they came. `about`: run id -> what W&B was
    told of it last. `views`: name -> the workspace as it was sent last."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.history: dict[str, list[str]] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, run: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.history[run]]
        return [{k: v for k, v in row.items() if k not in ("_runtime", "_timestamp")} for row in rows]

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "UpsertBucket" in query:
            told = {key: value for key, value in variables.items() if value is not None}  # null: as it was
            self.about[variables["name"]] = self.about.get(variables["name"], {}) | told
            return {"upsertBucket": {"bucket": self._run(variables["name"]), "inserted": True}}
        if "RunResumeStatus" in query:
            known = variables["name"] in self.history
            return {"model": {**PROJECT, "bucket": self._run(variables["name"]) if known else None}}
        if "CreateArtifact" in query:  # a table is one; this one has its files
            return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": {}}}}
        if "viewer" in query:
            return {"viewer": {"id": "u", "entity": OWNER, "username": OWNER, "flags": "{}"}}
        if "upsertView" in query:
            name, inserted = variables["name"], variables["name"] not in self.views
            self.views[name] = variables
            return {"upsertView": {"view": {"id": view_id(name), "name": name}, "inserted": inserted}}
        if "allViews" in query:
            known = variables["projectName"] == PROJECT["name"]
            return {"project": self._views(variables["viewName"]) if known else None}
        if "GetProject" in query:
            known = (variables["entity"], variables["name"]) == (OWNER, PROJECT["name"])
            return {"project": PROJECT_IN_FULL if known else None}
        return {}

    def _views(self, name: str) -> dict[str, Any]:
        view = self.views.get(name)
        nodes = [{"id": view_id(name), **{key: view[key] for key in ("displayName", "spec")}}] if view else []
        return {"allViews": {"edges": [{"node": node} for node in nodes]}}

    def _run(self, name: str) -> dict[str, Any]:
        lines = self.history.get(name, [])
        return {
            **{"id": "r", "name": name, "displayName": name, "project": PROJECT, "tags": []},
            "config": self.about.get(name, {}).get("config", "{}"),
            **{"summaryMetrics": "{}", "wandbConfig": '{"t": 1}'},  # without t W&B takes a run for one that never began
            **{"historyLineCount": len(lines), "historyTail": json.dumps(lines[-1:])},
            **{"eventsLineCount": 0, "eventsTail": "[]", "logLineCount": 0},
        }


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path.endswith("/graphql"):
            asked = json.loads(body)
            answer = {"data": self.server.answer(asked["query"], asked.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            run = self.path.split("/")[-2]
            file = (json.loads(body).get("files") or {}).get("wandb-history.jsonl")
            lines = self.server.history.setdefault(run, [])
            if file:
                assert file["offset"] == len(lines)  # or it would write over them
                lines += file["content"]
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
