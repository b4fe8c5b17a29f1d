# SPDX-License-Identifier: Apache-2.0
"""The official clients from npm, against the embedded models; needs node, and `make sdks` once."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAFETY_S = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.embedded,
    pytest.mark.skipif(
        not shutil.which("node") or not (HERE / "node_modules").exists(),
        reason="the npm clients are not installed: make sdks",
    ),
]


def run(served, *args):
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    env |= {"URL": served.url, "KEY": served.keys["acme"], "CHAT": "smollm2", "EMBED": "minilm"}
    command = ["node", str(HERE / "clients.mjs"), *args]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=SAFETY_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_supported_call_works(served):
    seen = run(served, "calls")
    streamed = seen.pop("v2_stream")
    assert streamed[:2] == ["message-start", "content-start"]
    assert streamed[-2:] == ["content-end", "message-end"]
    assert set(streamed[2:-2]) == {"content-delta"}
    assert seen == {
        "openai_chat": 4,
        "openai_stream": True,
        "openai_embeddings": [384, 384],
        "openai_models": ["smollm2", "minilm"],
        "v2_chat": ["MAX_TOKENS", "text", 4],
        "v2_embed": [384, 384, 48],
        "v2_rerank": [1, 0],
        "v1_chat": ["MAX_TOKENS", 2],
        "v1_stream": ["stream-start", "stream-end", "MAX_TOKENS"],
        "v1_embed": 384,
        "v1_rerank": "cats",
        "v1_models": ["smollm2", "minilm"],
        "v1_tokenize": 2,
    }


@pytest.mark.parametrize(
    ("given", "openai", "cohere"),
    [
        ({"key": "sk-tt-nobody"}, ["AuthenticationError", 401], ["UnauthorizedError", 401]),
        ({"model": "none"}, ["NotFoundError", 404], ["NotFoundError", 404]),
        (
            {"bad": {"openai": {"n": 0}, "one": {"maxTokens": 0.5}, "two": {"maxTokens": 0.5}}},
            ["BadRequestError", 400],
            ["BadRequestError", 400],
        ),
        (
            {
                "bad": {
                    "one": {"conversationId": "x"},
                    "two": {"logprobs": True},
                    "openai": {"n": 0},
                }
            },
            ["BadRequestError", 400],
            ["UnprocessableEntityError", 422],
        ),
    ],
)
def test_errors_are_of_the_class_that_users_catch(served, given, openai, cohere):
    seen = run(served, "errors", json.dumps(given))
    assert seen == {"openai": openai, "one": cohere, "two": cohere, "two_stream": cohere}
