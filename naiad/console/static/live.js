// The live state of the models: one stream of events for all parts of the page.
// The stream is closed while nobody looks at the page, so that the server computes nothing.

import {base, get, session} from "./api.js";

const RETRY_MS = 1500;
export const live = {models: new Map(), server: null, timeS: 0, isConnected: false, hasData: false};
const listeners = new Set();
let source = null, retry = 0, isWanted = false;

export function listen(listener) {
  listeners.add(listener);
  if (live.hasData) listener();
  return () => listeners.delete(listener);
}

const notify = () => listeners.forEach(listener => listener());

export function connect() {
  isWanted = true;
  if (!source && !document.hidden) open();
}

export function disconnect() {
  isWanted = false;
  close();
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = null;
  live.isConnected = false;
}

function open() {
  close();
  source = new EventSource(`${base}/console/api/events`);
  source.addEventListener("state", event => receive(JSON.parse(event.data)));
  source.addEventListener("refused", event => {
    close();
    session.onRefused({message: JSON.parse(event.data).error, title: "The session has ended"});
  });
  source.onerror = () => {
    const wasConnected = live.isConnected;
    close();
    if (wasConnected) notify();
    retry = setTimeout(check, RETRY_MS);
  };
}

// EventSource does not tell why it failed: the session does.
async function check() {
  if (!isWanted || document.hidden) return;
  try {
    const info = await get("/console/api/session");
    if (!info.is_signed_in) {
      session.onRefused({message: info.reason || "the server requires an API key", title: "The session has ended"});
      return;
    }
    session.info = info;
    open();
  } catch {
    retry = setTimeout(check, RETRY_MS);
    notify();
  }
}

function receive(snapshot) {
  if (snapshot.is_full) live.models = new Map();
  for (const row of snapshot.models) live.models.set(row.name, row);
  for (const name of snapshot.removed) live.models.delete(name);
  live.models = new Map([...live.models].sort(([a], [b]) => a < b ? -1 : 1));
  live.server = snapshot.server;
  live.timeS = snapshot.time_s;
  live.isConnected = live.hasData = true;
  notify();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) close();
  else if (isWanted) open();
});
