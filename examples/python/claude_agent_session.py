"""A session of the Claude Agent SDK that is mirrored into Anabranch, with a scripted transport in place of Claude Code.

    anabranch serve
    pip install claude-agent-sdk
    python examples/python/claude_agent_session.py

The session is forked after its first answer: http://127.0.0.1:50051/ shows both. A program that talks to Claude Code
leaves `transport` out, and continues a session on any machine by `ClaudeAgentOptions(session_store=store, resume=id)`.
"""

import asyncio
import json
import tempfile
import uuid
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport, project_key_for_directory

from anabranch.claude_agent_sdk import AnabranchSessionStore

ANSWERS = {"What is in a.txt?": "One line: hello.", "Delete it.": "It is deleted."}
config, session_id, project = tempfile.mkdtemp(), str(uuid.uuid4()), project_key_for_directory()


class Scripted(Transport):
    """Answers as Claude Code does: with the entries of its transcript, the message, and the result of the turn."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.last: str | None = None

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def end_input(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    async def write(self, data: str) -> None:
        given = json.loads(data)
        if given["type"] == "control_request":
            response = {"subtype": "success", "request_id": given["request_id"], "response": {}}
            self.said.put_nowait({"type": "control_response", "response": response})
            return
        question = given["message"]["content"]
        answer = {"role": "assistant", "model": "scripted", "content": [{"type": "text", "text": ANSWERS[question]}]}
        entries = [self.entry("user", given["message"]), self.entry("assistant", answer)]
        path = f"{config}/projects/{project}/{session_id}.jsonl"
        self.said.put_nowait({"type": "transcript_mirror", "filePath": path, "entries": entries})
        self.said.put_nowait({"type": "assistant", "message": answer, "session_id": session_id})
        spent = {"duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1}
        self.said.put_nowait({"type": "result", "subtype": "success", "session_id": session_id, **spent})

    def entry(self, role: str, message: dict[str, Any]) -> dict[str, Any]:
        parent, self.last = self.last, str(uuid.uuid4())
        names = {"type": role, "uuid": self.last, "parentUuid": parent, "sessionId": session_id, "isSidechain": False}
        return {**names, "message": message}

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self.said.get()


async def main() -> None:
    store = AnabranchSessionStore()
    options = ClaudeAgentOptions(session_store=store, env={"CLAUDE_CONFIG_DIR": config})
    async with ClaudeSDKClient(options, transport=Scripted()) as client:
        for question in ANSWERS:
            await client.query(question)
            async for _ in client.receive_response():
                pass
    key = {"project_key": project, "session_id": session_id}
    entries = await store.load(key)
    fork = await store.fork(key, at=entries[1]["uuid"])
    print(f"the session has {len(entries)} entries, its fork {len(await store.load(fork))}")


asyncio.run(main())
