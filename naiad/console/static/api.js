// Requests to the server, and errors that say what refused a request and what to do.

export const session = {info: null, onRefused: () => {}};

export class Refusal extends Error {
  constructor(status, message, headers) {
    super(message);
    this.status = status;
    const [title, advice] = explain(status, message, headers);
    this.title = title;
    this.advice = advice;
  }
}

function explain(status, message, headers) {
  const scope = /does not have the scope '([^']+)'/.exec(message);
  if (status === 0) return ["The server does not respond", "It may be restarting. The page connects again by itself."];
  if (status === 401) return ["No valid key", "The session has ended, or the key was revoked or has expired. Sign in again."];
  if (scope) return [`The key lacks the scope '${scope[1]}'`, `A key with the scope 'keys' can add it on the Keys page, or: POST /key/update with "scopes".`];
  if (status === 403 && /origin/.test(message)) return ["Refused by the check of origins", "Requests that change something must come from a page that this server has served."];
  if (status === 403) return ["Not allowed", "A rule of the server refused the request."];
  if (status === 404) return ["Not found", "The model does not exist, is not loaded, or the key may not see it."];
  if (status === 413) return ["The request is too large", "The server's --http-max-input-size limits it."];
  if (status === 429) {
    const wait = headers?.get("retry-after");
    return ["A limit of the key is reached", wait ? `Try again in ${wait} s.` : "Try again later."];
  }
  if (/explicit model load \/ unload is not allowed/.test(message)) return ["Models cannot be loaded by request", "The server was started without --model-control-mode=explicit. Start it with --model-control-mode=explicit --load-model='*'."];
  if (status === 400) return ["The request is not valid", "The server's message names the field."];
  if (status === 503) return ["Not available now", "The model is loading, its queue is full, or its workers are restarting."];
  if (status >= 500) return ["The model or the server failed", "The log on the Watch page may say more."];
  return ["It did not work", ""];
}

export function messageOf(text) {
  try {
    const body = JSON.parse(text);
    return typeof body.error === "string" ? body.error : body.error?.message ?? text;
  } catch {
    return text;
  }
}

// Returns the response of a request that succeeded; throws a Refusal otherwise.
export async function send(method, path, body, options = {}) {
  const request = {method, headers: {}, ...options};
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "the connection failed");
  }
  if (!response.ok) {
    const refusal = new Refusal(response.status, messageOf(await response.text()), response.headers);
    if (response.status === 401 && path !== "/console/api/session") session.onRefused(refusal);
    throw refusal;
  }
  return response;
}

export const get = async path => (await send("GET", path)).json();

export async function post(path, body) {
  const text = await (await send("POST", path, body ?? {})).text();
  return text ? JSON.parse(text) : null;
}

export const may = scope => session.info?.scopes.includes(scope) ?? false;
export const modelPath = name => `/v2/models/${encodeURIComponent(name)}`;
export const controlPath = (name, verb) => `/v2/repository/models/${encodeURIComponent(name)}/${verb}`;
