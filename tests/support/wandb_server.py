"""A stand-in for W&B's server on loopback: it keeps the history of runs and the reports that it is sent."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Attributes: history, the lines of each run by id and number of the line; reports, what was saved."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        self.states: dict[str, int | None] = {}
        self.reports: list[dict[str, Any]] = []

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of W&B that lead here."""
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}", "WANDB_API_KEY": "a1" * 20}

    def steps(self, run: str) -> list[int]:
        """Returns the step of each line of a run, in their order."""
        return [row["_step"] for _, row in sorted(self.history[run].items())]

    def take(self, run: str, sent: dict[str, Any]) -> None:
        """Keeps the lines of history that a run sends, each with its number, and the exit code at its end."""
        lines = sent.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
        kept = self.history.setdefault(run, {})
        kept.update({lines["offset"] + i: json.loads(line) for i, line in enumerate(lines["content"])})
        if sent.get("complete"):
            self.states[run] = sent.get("exitcode")

    def answer(self, query: str, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the data of a GraphQL operation."""
        lab = {"id": "e", "name": "lab"}
        project = {"id": "p", "name": values.get("projectName") or "bench", "entity": lab, "entityName": "lab"}
        if "RunResumeStatus" in query:
            return {"model": {**project, "bucket": self._resumed(values["name"])}}
        if "upsertBucket" in query:
            named = {"id": "b", "name": values.get("name"), "displayName": values.get("displayName")}
            others = {"description": None, "config": None, "sweepName": None, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": {**named, **others, "project": project}, "inserted": True}}
        if "createArtifact(" in query:
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": self.variables["WANDB_BASE_URL"]} for name in values.get("files", [])]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "upsertView" in query:
            self.reports.append(values)
            return {"upsertView": {"view": {**values, "id": "view1", "project": project}, "inserted": True}}
        return {
            "viewer": {
                "id": "u",
                "entity": "lab",
                "username": "ann",
                "email": "",
                "flags": "{}",
                "teams": {"edges": []},
            },
            "project": {"id": "p", "internalId": "7", "artifact": None},
            "models": {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}},
            "upsertModel": {"project": project, "model": project, "inserted": True},
            "serverInfo": {"features": []},
        }

    def _resumed(self, run: str) -> dict[str, Any] | None:
        """What a run that goes on asks for; None for a new one."""
        if not self.history.get(run):
            return None
        last = self.history[run][max(self.history[run])]
        counts = {"historyLineCount": len(self.history[run]), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(last)]), "eventsTail": "[]", "summaryMetrics": "{}"}
        return {"id": "b", "name": run, "displayName": "", "config": "{}", "tags": [], "wandbConfig": '{"t": 1}',
                **counts, **tails}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers every request of W&B's client."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            sent = gzip.decompress(sent)
        content: dict[str, Any] = json.loads(sent) if sent.startswith(b"{") else {}
        if self.path.endswith("/file_stream"):
            self.server.take(self.path.split("/")[-2], content)
            reply: dict[str, Any] = {}
        else:
            reply = {"data": self.server.answer(content.get("query") or "", content.get("variables") or {})}
        answer = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a client that has ended
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def wandb_server() -> Iterator[Server]:
    """Yields the server while it runs."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
