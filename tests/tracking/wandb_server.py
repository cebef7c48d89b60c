"""A stand-in for W&B's server, with as much of it as a run needs: it says how far a run got, and takes its rows."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = {"id": "p", "name": "sharder", "entity": {"id": "e", "name": "someone"}}


class Server(ThreadingHTTPServer):
    """`history`: run id -> lines, each a row as JSON, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.history: dict[str, list[str]] = {}

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
            return {"upsertBucket": {"bucket": self._run(variables["name"]), "inserted": True}}
        if "RunResumeStatus" in query:
            known = variables["name"] in self.history
            return {"model": {**PROJECT, "bucket": self._run(variables["name"]) if known else None}}
        return {}

    def _run(self, name: str) -> dict[str, Any]:
        lines = self.history.get(name, [])
        return {
            **{"id": "r", "name": name, "displayName": name, "project": PROJECT, "config": "{}", "tags": []},
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
