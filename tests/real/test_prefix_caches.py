# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp's own server has cached of one tenant's prompt, another can't see.

How soon the first token comes is what benchmarks/prefix_caches.py measures; here
the engine itself says how much of a prompt it had.
"""

import pytest
import requests
from e2e.process import SAFETY_S
from real.engines import gateway, llamacpp, tiny_model

from taketurns.engines.weights import SMOLLM2_MODEL, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SMOLLM2_MODEL in missing(), reason="the embedded models are not installed"),
]

# Not `messages`: there the server drops `cache_prompt`, and has to be started without.
ENDPOINTS = ["chat", "completions", "responses"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the gateway's URL, and the keys of two tenants."""
    folder = tmp_path_factory.mktemp("caches")
    with llamacpp(tiny_model(folder), "tiny", slots=1) as engine:
        part = {"url": engine, "slots": 1, "kind": "llamacpp", "model": "tiny"}
        models = {
            "apart": {"endpoints": ENDPOINTS, "engines": [part]},
            "shared": {"endpoints": ENDPOINTS, "engines": [part | {"cache_per_tenant": False}]},
        }
        with gateway(folder, models, {"acme": {}, "globex": {}}) as (process, keys):
            yield process.url, keys


def chat(text):
    return "chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


def completion(text):
    return "completions", {"prompt": text, "max_tokens": 1}


def response(text):
    return "responses", {"input": text, "max_output_tokens": 1}


def cached(answer):
    """Return how many tokens the engine had, as chat and completions tell it, or responses."""
    usage = answer["usage"]
    return (usage.get("prompt_tokens_details") or usage["input_tokens_details"])["cached_tokens"]


@pytest.mark.parametrize("model", ["apart", "shared"])
@pytest.mark.parametrize("ask", [chat, completion, response])
def test_no_tenant_sees_what_another_has_asked(site, model, ask):
    url, keys = site
    path, body = ask(f"What {model} tells by {ask.__name__}: " + "a secret of ours, " * 50)

    def post(tenant):
        headers = {"Authorization": f"Bearer {keys[tenant]}"}
        sent = {"model": model, "cache_prompt": True, "cache_salt": "acme", **body}
        answer = requests.post(f"{url}/v1/{path}", json=sent, headers=headers, timeout=SAFETY_S)
        assert answer.status_code == 200, answer.text
        return cached(answer.json())

    post("acme")
    known = post("globex")
    assert (known == 0) if model == "apart" else (known > 100)
