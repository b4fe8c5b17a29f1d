# SPDX-License-Identifier: Apache-2.0
"""Tries LangChain's and LlamaIndex's connectors and Anthropic's client, by hand:

    make connectors

They ask the embedded models, and for Anthropic's API llama.cpp's own server. Each gets an
environment of its own, since some hold back the clients below them. Prints what worked;
docs/howto/clients.md has the last result.
"""

# ruff: noqa: T201 - it is run by hand
import argparse
import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = {
    "anthropic": ["anthropic", "langchain-anthropic"],
    "langchain": ["langchain-openai", "langchain-cohere", "langchain-community"],
    "llamaindex": [
        "llama-index-embeddings-openai-like",
        "llama-index-embeddings-cohere",
        "llama-index-embeddings-text-embeddings-inference",
        "llama-index-postprocessor-cohere-rerank",
        "llama-index-postprocessor-jinaai-rerank",
        "llama-index-postprocessor-tei-rerank",
    ],
}
CONFIG = """
tiers: {production: {rank: 0}}
models:
  smollm2: {endpoints: [chat], engines: [{embedded: smollm2}]}
  tiny: {endpoints: [messages], engines: [{url: "${LLAMA}", kind: llamacpp}]}
  minilm: {endpoints: [embeddings, rerank], engines: [{embedded: minilm}], tenants: [acme]}
  # One of the names that LlamaIndex's CohereEmbedding takes.
  embed-english-v3.0: {endpoints: [embeddings], engines: [{embedded: minilm}], tenants: [globex]}
tenants:
  acme: {tier: production, keys: ["${ACME}"]}
  globex: {tier: production, keys: ["${GLOBEX}"]}
"""
TEXTS = ["cats purr", "stones lie"]
QUERY = "a cat"


def anthropic(url, key, _):
    """Yield a name and a call of Anthropic's client, and of the connector that uses it."""
    from anthropic import Anthropic
    from langchain_anthropic import ChatAnthropic

    client = Anthropic(api_key=key, base_url=url, max_retries=0)
    asked = {
        "model": "tiny",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Tell me a story."}],
    }
    model = ChatAnthropic(model="tiny", max_tokens=8, api_key=key, base_url=url)

    def whole():
        said = client.messages.create(**asked)
        assert 0 < said.usage.output_tokens <= 8, said

    def streamed():
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            said = stream.get_final_message()
        assert kinds[0] == "message_start", kinds
        assert kinds[-1] == "message_stop", kinds
        assert 0 < said.usage.output_tokens <= 8, said

    def pieces():
        found = list(model.stream("Tell me a story."))
        assert len(found) > 2, found

    yield "Anthropic, whole", whole
    yield "Anthropic, streamed", streamed
    yield "ChatAnthropic, whole", lambda: model.invoke("Tell me a story.")
    yield "ChatAnthropic, streamed", pieces


def langchain(url, key, _):
    """Yield a name and a call of each of LangChain's connectors."""
    from langchain_cohere import ChatCohere, CohereEmbeddings, CohereRerank
    from langchain_core.documents import Document
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    documents = [Document(page_content=text) for text in TEXTS]
    at_openai = {"base_url": f"{url}/v1", "api_key": key}
    at_cohere = {"base_url": url, "cohere_api_key": key}

    def ranked(found):
        assert found[0].page_content == TEXTS[0], found

    def vectors(made):
        assert [len(vector) for vector in made] == [384, 384]

    yield (
        "ChatOpenAI",
        lambda: ChatOpenAI(model="smollm2", max_tokens=4, **at_openai).invoke("Hi."),
    )
    yield (
        "ChatOpenAI, streamed",
        lambda: list(ChatOpenAI(model="smollm2", max_tokens=4, **at_openai).stream("Hi.")),
    )
    yield (
        "OpenAIEmbeddings, check_embedding_ctx_length=False",
        lambda: vectors(
            OpenAIEmbeddings(
                model="minilm", check_embedding_ctx_length=False, **at_openai
            ).embed_documents(TEXTS)
        ),
    )
    yield (
        "ChatCohere",
        lambda: ChatCohere(model="smollm2", max_tokens=4, **at_cohere).invoke("Hi."),
    )
    yield (
        "ChatCohere, streamed",
        lambda: list(ChatCohere(model="smollm2", max_tokens=4, **at_cohere).stream("Hi.")),
    )
    yield (
        "CohereEmbeddings",
        lambda: vectors(CohereEmbeddings(model="minilm", **at_cohere).embed_documents(TEXTS)),
    )
    yield (
        "CohereRerank",
        lambda: ranked(
            CohereRerank(model="minilm", top_n=1, **at_cohere).compress_documents(documents, QUERY)
        ),
    )


def llamaindex(url, key, other_key):
    """Yield a name and a call of each of LlamaIndex's connectors."""
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.embeddings.cohere import CohereEmbedding
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
    from llama_index.postprocessor.cohere_rerank import CohereRerank
    from llama_index.postprocessor.jinaai_rerank import JinaRerank
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as TeiRerank

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]

    def ranked(connector):
        found = connector.postprocess_nodes(nodes, query_str=QUERY)
        assert found[0].node.text == TEXTS[0], found

    def vectors(connector):
        assert [len(vector) for vector in connector.get_text_embedding_batch(TEXTS)] == [384, 384]

    yield (
        "OpenAILikeEmbedding",
        lambda: vectors(
            OpenAILikeEmbedding(model_name="minilm", api_base=f"{url}/v1", api_key=key)
        ),
    )
    yield (
        "CohereEmbedding",
        lambda: vectors(
            CohereEmbedding(model_name="embed-english-v3.0", api_key=other_key, base_url=url)
        ),
    )
    yield (
        "TextEmbeddingsInference",
        lambda: vectors(
            TextEmbeddingsInference(
                model_name="minilm", base_url=url, auth_token=key, truncate_text=True
            )
        ),
    )
    yield (
        "CohereRerank",
        lambda: ranked(CohereRerank(model="minilm", api_key=key, base_url=url, top_n=1)),
    )
    yield (
        "JinaRerank",
        lambda: ranked(JinaRerank(model="minilm", api_key=key, base_url=f"{url}/v1", top_n=1)),
    )
    yield (
        "TEI rerank",
        lambda: ranked(TeiRerank(base_url=url, auth_token=f"Bearer {key}", top_n=1)),
    )


TRIED = {"anthropic": anthropic, "langchain": langchain, "llamaindex": llamaindex}


def try_all(which, *at):
    """Try each connector; return how many failed otherwise than is known."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES[which]]
    print(f"## {which}: {', '.join(versions)}")
    failed = 0
    try:
        for name, call in TRIED[which](*at):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever a connector raises is told
                failed += 1
                print(f"{name}: {type(error).__name__}: {str(error)[:160]}")
            else:
                print(f"{name}: ok")
    except ImportError as error:
        failed += 1
        print(f"can't be imported: {error}")
    return failed


def main():
    """Serve the embedded models, and try what is asked for in environments of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PACKAGES)
    parser.add_argument("--within", nargs=3, metavar=("URL", "KEY", "KEY"), help=argparse.SUPPRESS)
    parser.add_argument("--environments", type=Path, help="folder with environments to use again")
    args = parser.parse_args()
    if args.within:
        return try_all(args.only, *args.within)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from e2e.process import Process
    from real.engines import llamacpp, tiny_model

    from taketurns.gateway.auth import mint

    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    failed = 0
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = args.environments or Path(folder)
        acme, globex = mint(), mint()
        llama = stack.enter_context(llamacpp(tiny_model(Path(folder)), "tiny"))
        os.environ.update(ACME=acme.line, GLOBEX=globex.line, LLAMA=llama)
        config = Path(folder) / "taketurns.yaml"
        config.write_text(CONFIG)
        served = Process([str(config), "--port", "0", "--admin-port", "0"], Path(folder))
        stack.callback(served.end)
        for which in [args.only] if args.only else PACKAGES:
            python = places / which / "bin/python"
            if not python.exists():
                subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
                install = [python, "-m", "pip", "install", "--quiet", *PACKAGES[which]]
                subprocess.run(install, check=True)
            command = [python, __file__, "--only", which]
            command += ["--within", served.url, acme.key, globex.key]
            failed += subprocess.run(command, check=False, env=clean).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
