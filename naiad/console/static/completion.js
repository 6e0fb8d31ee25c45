// One chat completion as a stream: text and tool calls as they arrive, and its times.

import {messageOf, refuse, send} from "./api.js";

// Calls `onChange(state)` whenever something arrives. Returns the state: {content, calls, finish,
// usage, firstMs, totalMs, tokensPerS, numTokens}. Throws as `send` does; `error.state` has what
// arrived before.
export async function complete(request, signal, onChange, headers = {}) {
  const state = {content: "", calls: [], finish: "", usage: null, firstMs: null, totalMs: 0, tokensPerS: null, numTokens: 0};
  const start = performance.now();
  let numPieces = 0;
  const measure = () => {
    state.totalMs = performance.now() - start;
    state.numTokens = state.usage?.completion_tokens ?? numPieces;
    const seconds = (state.totalMs - (state.firstMs ?? 0)) / 1000;
    if (state.numTokens > 1 && seconds > 0) state.tokensPerS = (state.numTokens - 1) / seconds;
  };
  try {
    const body = {...request, stream: true, stream_options: {include_usage: true}};
    const response = await send("POST", "/v1/chat/completions", body, {signal, headers});
    for await (const chunk of events(response)) {
      if (chunk.error) throw refuse(500, messageOf(JSON.stringify(chunk)));
      state.usage = chunk.usage ?? state.usage;
      const choice = chunk.choices?.[0];
      if (choice?.finish_reason) state.finish = choice.finish_reason;
      const {content, tool_calls: parts} = choice?.delta ?? {};
      if (!content && !parts?.length) continue;
      state.firstMs ??= performance.now() - start;
      numPieces++;
      state.content += content ?? "";
      for (const part of parts ?? []) addCall(state.calls, part);
      measure();
      onChange(state);
    }
  } catch (error) {
    measure();
    error.state = state;
    throw error;
  }
  measure();
  return state;
}

// A call arrives in parts: its name first, then pieces of its arguments.
function addCall(calls, part) {
  const call = calls[part.index] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
  if (part.id) call.id = part.id;
  if (part.function?.name) call.function.name = part.function.name;
  call.function.arguments += part.function?.arguments ?? "";
}

// The JSON of each server-sent event of a response.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter(line => line.startsWith("data:"))
        .map(line => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
