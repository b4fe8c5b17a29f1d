// SPDX-License-Identifier: Apache-2.0
// Runs the official npm clients against a gateway and prints what they saw, as one JSON object.
//
//   URL=http://127.0.0.1:8080 KEY=sk-tt-... CHAT=smollm2 EMBED=minilm node clients.mjs calls
//   ... node clients.mjs errors '{"key": "sk-tt-nobody"}'
import OpenAI from "openai";
import { CohereClient, CohereClientV2 } from "cohere-ai";
import Anthropic from "@anthropic-ai/sdk";

const { URL: url, KEY: key, CHAT: chat, EMBED: embed } = process.env;
const [mode, given] = process.argv.slice(2);
const hello = [{ role: "user", content: "Say one word." }];

function clients(apiKey) {
  return {
    openai: new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 }),
    one: new CohereClient({ token: apiKey, environment: url }),
    two: new CohereClientV2({ token: apiKey, environment: url }),
    anthropic: new Anthropic({ baseURL: url, apiKey, maxRetries: 0 }),
  };
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function calls() {
  const { openai, one, two } = clients(key);
  const seen = {};
  const tokens = { max_tokens: 4, temperature: 0 };
  const whole = await openai.chat.completions.create({ model: chat, messages: hello, ...tokens });
  seen.openai_chat = whole.usage.completion_tokens;
  const pieces = await all(
    await openai.chat.completions.create({ model: chat, messages: hello, stream: true, ...tokens }),
  );
  seen.openai_stream = pieces.every((piece) => piece.choices.length === 1);
  const vectors = await openai.embeddings.create({ model: embed, input: ["a", "b"] });
  seen.openai_embeddings = vectors.data.map((item) => item.embedding.length);
  seen.openai_models = (await all(openai.models.list())).map((model) => model.id);

  const limits = { maxTokens: 4, temperature: 0 };
  const said = await two.chat({ model: chat, messages: hello, ...limits });
  seen.v2_chat = [said.finishReason, said.message.content[0].type, said.usage.tokens.outputTokens];
  const told = await all(await two.chatStream({ model: chat, messages: hello, ...limits }));
  seen.v2_stream = told.map((event) => event.type);
  const typed = await two.embed({
    model: embed,
    texts: ["a"],
    inputType: "search_query",
    embeddingTypes: ["float", "int8", "ubinary", "base64"],
  });
  const made = typed.embeddings;
  seen.v2_embed = [made.float, made.int8, made.ubinary].map((rows) => rows[0].length);
  const ranked = await two.rerank({ model: embed, query: "a cat", documents: ["stone", "cats"] });
  seen.v2_rerank = ranked.results.map((item) => item.index);

  const old = await one.chat({ model: chat, message: "Say one word.", ...limits });
  seen.v1_chat = [old.finishReason, old.chatHistory.length];
  const lines = await all(await one.chatStream({ model: chat, message: "Hi.", ...limits }));
  seen.v1_stream = [lines[0].eventType, lines.at(-1).eventType, lines.at(-1).finishReason];
  const bare = await one.embed({ model: embed, texts: ["a"], inputType: "clustering" });
  seen.v1_embed = bare.embeddings[0].length;
  const back = await one.rerank({
    model: embed,
    query: "a cat",
    documents: ["stone", "cats"],
    returnDocuments: true,
  });
  seen.v1_rerank = back.results[0].document.text;
  seen.v1_models = (await one.models.list()).models.map((model) => model.name);
  seen.v1_tokenize = (await one.tokenize({ model: embed, text: "a cat" })).tokens.length;
  return seen;
}

async function errors({ key: apiKey = key, model = chat, bad = {} }) {
  const { openai, one, two } = clients(apiKey);
  const once = { maxRetries: 0 };
  const asked = {
    openai: () => openai.chat.completions.create({ model, messages: hello, ...bad.openai }),
    one: () => one.chat({ model, message: "Hi.", ...bad.one }, once),
    two: () => two.chat({ model, messages: hello, ...bad.two }, once),
    two_stream: async () =>
      all(await two.chatStream({ model, messages: hello, ...bad.two }, once)),
  };
  const seen = {};
  for (const [name, ask] of Object.entries(asked)) {
    try {
      await ask();
      seen[name] = "no error";
    } catch (error) {
      seen[name] = [error.constructor.name, error.status ?? error.statusCode];
    }
  }
  return seen;
}

async function messages() {
  const { anthropic } = clients(key);
  const asked = { model: chat, max_tokens: 9, messages: hello };
  const seen = { whole: (await anthropic.messages.create(asked)).content[0].text };
  const events = await all(await anthropic.messages.create({ ...asked, stream: true }));
  seen.streamed = events.map((event) => event.type);
  try {
    await clients("sk-tt-nobody").anthropic.messages.create(asked);
  } catch (error) {
    seen.error = [error.constructor.name, error.status];
  }
  return seen;
}

const modes = { calls, errors, messages };
console.log(JSON.stringify(await modes[mode](JSON.parse(given ?? "{}"))));
