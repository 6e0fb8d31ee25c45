// Uploads files to a draft in pieces. A file goes on where it stopped: after a lost connection, and after a restart of the server.

import {get, post, send} from "./api.js";

const RETRY_MS = 1500;
const HIDDEN = /(^|\/)\./;

const wait = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));

// Files of a drop, with their paths: folders are read to the end.
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [];
  for (const entry of entries) await readEntry(entry, "", files);
  return entries.length ? files : [...transfer.files].map(file => ({path: file.name, file}));
}

async function readEntry(entry, folder, files) {
  const path = folder ? `${folder}/${entry.name}` : entry.name;
  if (HIDDEN.test(path)) return;
  if (entry.isFile) {
    files.push({path, file: await new Promise((resolve, reject) => entry.file(resolve, reject))});
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return;
    for (const child of batch) await readEntry(child, path, files);
  }
}

export function chosenFiles(list) {
  return [...list].map(file => ({path: file.webkitRelativePath || file.name, file})).filter(item => !HIDDEN.test(item.path));
}

export const newDraft = async repository => (await post("/console/api/drafts", {repository})).id;
export const discardDraft = id => send("DELETE", `/console/api/drafts/${id}`).catch(() => {});

// Resolves when the server has the whole file and has accepted it; throws its refusal.
export async function uploadFile(draft, {path, file}, pieceBytes, onProgress, isCancelled) {
  let offset = 0;
  const url = at => `/console/api/drafts/${draft}/file?path=${encodeURIComponent(path)}&offset=${at}&size=${file.size}`;
  for (;;) {
    if (isCancelled()) return;
    const piece = file.slice(offset, offset + pieceBytes);
    try {
      const body = await piece.arrayBuffer();
      await send("PUT", url(offset), undefined, {headers: {"Content-Type": "application/octet-stream"}, body});
      offset += piece.size;
      onProgress(offset, "");
      if (offset >= file.size) return;
    } catch (error) {
      if (!isPassing(error)) throw error;
      onProgress(offset, error.status === 403 ? "waiting for the server's new link to be opened" : "waiting for the server");
      offset = await receivedBytes(draft, path, isCancelled);
      if (offset >= file.size && file.size) { onProgress(offset, ""); return; }
    }
  }
}

async function receivedBytes(draft, path, isCancelled) {
  while (!isCancelled()) {
    await wait(RETRY_MS);
    try {
      const {files} = await get(`/console/api/drafts/${draft}`);
      return files.find(item => item.path === path)?.received ?? 0;
    } catch (error) {
      if (!isPassing(error)) throw error;
    }
  }
  return 0;
}

// A server that has restarted has a new token, which may come from another tab.
const isPassing = ({status, message}) => status === 0 || status === 503 || (status === 403 && /server's token/.test(message));
