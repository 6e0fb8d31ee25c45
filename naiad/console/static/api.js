// Requests to the server.

import {Refusal} from "./refusal.js";

export const session = {info: null, onRefused: () => {}};
export const base = location.pathname.replace(/\/console\/?$/, "");  // behind a proxy, the server may be below a path
export const PROOF = "naiad-console";

// What shows, beside the cookie, that a page is one of this server. Other ports share cookies, but not this.
let proof = read();

function read() {
  try {
    return localStorage.getItem(PROOF) ?? "";
  } catch {
    return "";
  }
}

export function keepProof(text) {
  proof = text;
  try {
    localStorage.setItem(PROOF, text);
  } catch { /* this page has it for as long as it is open */ }
}

export const rereadProof = () => { proof = read(); };

// Keeps a token if the server accepts it; returns whether it does.
export async function adopt(token) {
  const before = proof;
  proof = token;
  const info = await get("/console/api/session");
  if (info.change_refusal) {
    proof = before;
    return false;
  }
  session.info = info;
  keepProof(token);
  return true;
}

export function messageOf(text) {
  try {
    const body = JSON.parse(text);
    return typeof body.error === "string" ? body.error : body.error?.message ?? text;
  } catch {
    return text;
  }
}

export const refuse = (status, message, headers) => new Refusal(status, message, headers, session.info);

// Returns the response of a request that succeeded; throws a Refusal otherwise.
export async function send(method, path, body, options = {}) {
  const request = {method, headers: {}, ...options};
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  if (proof) request.headers = {...request.headers, "X-Naiad-Console": proof};
  let response;
  try {
    response = await fetch(base + path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw refuse(0, "the connection failed");
  }
  if (!response.ok) {
    const refusal = refuse(response.status, messageOf(await response.text()), response.headers);
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
