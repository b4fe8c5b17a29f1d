# SPDX-License-Identifier: Apache-2.0
"""The proxy that most would write first: FastAPI in front, httpx behind, bodies as they come."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client for all requests."""
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=2000)
    async with httpx.AsyncClient(
        base_url=os.environ["ENGINE"], limits=limits, timeout=600
    ) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Pass a request on, and its answer back."""
    body = await request.json()
    client = request.app.state.client
    if not body.get("stream"):
        answer = await client.post("/v1/chat/completions", json=body)
        return Response(answer.content, answer.status_code, media_type="application/json")
    sent = client.build_request("POST", "/v1/chat/completions", json=body)
    answer = await client.send(sent, stream=True)
    return StreamingResponse(answer.aiter_raw(), answer.status_code, media_type="text/event-stream")
