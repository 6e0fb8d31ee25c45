// API keys: create, change, rotate, revoke, and what they use. All of it is the key API over HTTP.

import {get, may, post, session} from "./api.js";
import {chart} from "./chart.js";
import {ask, copy, dash, duration, h, number, problemBox, toast} from "./dom.js";

const SCOPES = ["inference", "metadata", "model-config", "statistics", "model-repository", "shared-memory", "trace", "logging", "keys"];
const DEFAULT_SCOPES = SCOPES.slice(0, 4);
const LIMITS = [["rpm_limit", "Requests per minute"], ["tpm_limit", "Tokens per minute"], ["max_parallel_requests", "Requests at a time"], ["tokens_per_day", "Tokens per day"]];
const COLUMNS = ["Models", "Scopes", "Limits", "Expires", "Requests", "Refused", "Tokens"];

export function show(root) {
  const create = h("button", {type: "button", class: "primary", onclick: async () => { if (await edit(null)) refresh(); }}, "Create key");
  const area = h("div");
  root.append(h("div", {class: "head"}, h("h1", null, "Keys"), h("div", {class: "tools"}, create)), area);
  const explain = (title, ...content) => { create.hidden = true; area.replaceChildren(h("section", {class: "card empty"}, h("h2", null, title), content)); };

  async function refresh() {
    try {
      const [list, usage] = await Promise.all([get("/key/list"), get("/console/api/usage")]);
      const used = new Map(usage.keys.map(row => [row.key, row]));
      area.replaceChildren(h("section", {class: "card table-card"}, h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Keys"}, h("table", {class: "stack"},
        h("thead", null, h("tr", null, h("th", {scope: "col"}, "Key"), COLUMNS.map(text => h("th", {scope: "col"}, text)), h("th", {scope: "col"}, "Actions"))),
        h("tbody", null, list.keys.map(key => keyRow(key, used.get(key.token), refresh)))))),
      h("p", {class: "hint"}, "Requests, refusals and tokens are counted since the server started."));
    } catch (error) {
      area.replaceChildren(problemBox(error));
    }
  }

  if (!session.info.needs_key) {
    explain("This server requires no keys", h("p", null, "Everybody on this machine may use it. To require keys, create one that may manage keys and start the server with the file:"),
      h("pre", {class: "code", tabindex: "0"}, `naiad key create admin --scopes ${SCOPES.join(",")} --api-key-file keys.json\nnaiad serve --api-key-file keys.json ...`));
  } else if (!may("keys")) explain("Your key may not manage keys", h("p", null, "Sign in with a key that has the scope 'keys'."));
  else if (!session.info.has_key_file) explain("The server has no key file", h("p", null, "Its keys are on the command line. Start it with --api-key-file FILE to manage keys."));
  else refresh();
}

function keyRow(key, usage, refresh) {
  const isOwn = key.token === session.info.key_id;
  const limits = LIMITS.filter(([name]) => key[name] !== null && key[name] !== undefined).map(([name, title]) => `${number(key[name], 6)} ${title.toLowerCase()}`);
  const act = (name, work, attributes = {}) => h("button", {type: "button", class: "small", "aria-label": `${name} ${key.key_alias}`, ...attributes, onclick: async () => {
    try {
      if (await work() !== null) refresh();
    } catch (error) {
      await ask(error.title, h("pre", null, error.message), {confirm: "Close", cancel: ""});
    }
  }}, name);
  const actions = key.blocked ? [
    act("Allow again", () => post("/key/unblock", {key: key.token})),
    act("Delete", () => ask(`Delete ${key.key_alias}?`, h("p", null, "It cannot be restored."), {confirm: "Delete", danger: true, submit: () => post("/key/delete", {keys: [key.token]})}), {class: "small danger"}),
  ] : [
    act("Usage", () => usageDialog(key)), act("Edit", () => edit(key)), act("Rotate", () => rotate(key)),
    act("Revoke", async () => {
      const done = await ask(`Revoke ${key.key_alias}?`, h("p", null, isOwn ? "This is the key that you are signed in with: you will be signed out at once." : "Its next request fails, also on open connections."),
        {confirm: "Revoke", danger: true, submit: () => post("/key/block", {key: key.token})});
      if (done && !isOwn) toast(`${key.key_alias} is revoked`, "Undo", async () => { await post("/key/unblock", {key: key.token}); refresh(); });
      return done;
    }, {class: "small danger"}),
  ];
  const cells = [key.models.join(", "), key.scopes.join(", "), limits.join(", ") || "none", expiry(key),
    usage ? number(usage.num_requests, 9) : "0", usage ? number(usage.num_refused, 9) : "0", usage ? number(usage.num_prompt_tokens + usage.num_output_tokens, 9) : "0"];
  return h("tr", null, h("th", {scope: "row"}, key.key_alias, h("span", {class: "sub"}, key.token, isOwn ? " · yours" : "", key.blocked ? " · revoked" : "")),
    cells.map((text, index) => h("td", {class: COLUMNS[index] === "Scopes" ? "wrap full" : "wrap", "data-label": COLUMNS[index]}, text)), h("td", {class: "full"}, h("div", {class: "row"}, actions)));
}

// What a key has used in the last hour.
async function usageDialog(key) {
  const history = await get(`/console/api/key-history?key=${encodeURIComponent(key.token)}`);
  const draw = (title, series) => chart(title, "Per second", history.times_s, Object.entries(series).map(([id, text]) => ({name: text, points: history.series[id]})), number, [], Date.now() / 1000);
  await ask(`Usage of ${key.key_alias}`, history.times_s.length ? h("div", {class: "usage"}, draw("Requests", {requests_per_s: "let in", refused_per_s: "refused"}), draw("Tokens", {prompt_tokens_per_s: "prompt", output_tokens_per_s: "output"})) :
    h("p", null, "The key has sent no request since the server started, or the first ten seconds are not over."), {confirm: "Close", cancel: ""});
  return null;
}

function expiry(key) {
  if (!key.expires) return "never";
  const seconds = (new Date(key.expires) - Date.now()) / 1000;
  return seconds <= 0 ? "expired" : `in ${duration(seconds)}`;
}

function showSecret(title, secret) {
  const button = h("button", {type: "button", class: "small", onclick: () => copy(secret, button)}, "Copy");
  return ask(title, h("div", null, h("p", null, "This is the only time that the key is shown. The server keeps only its hash."),
    h("div", {class: "secret", id: "secret"}, secret), h("p", null, button)), {confirm: "I have stored it", cancel: ""});
}

async function rotate(key) {
  const issued = await ask(`New secret for ${key.key_alias}`, h("div", {class: "field"}, h("label", null, "The old secret stays valid for",
    h("select", {name: "grace"}, [["1s", "one second"], ["1h", "one hour"], ["24h", "one day"], ["7d", "one week"]].map(([value, text]) => h("option", {value, selected: value === "24h"}, text))))),
  {confirm: "Rotate", submit: data => post("/key/regenerate", {key: key.token, grace_period: data.get("grace")})});
  if (issued) await showSecret("The new key", issued.key);
  return issued;
}

async function edit(key) {
  const scopes = key?.scopes ?? DEFAULT_SCOPES;
  const body = h("div", null,
    h("div", {class: "field"}, h("label", null, "Name", h("input", {name: "key_alias", required: true, value: key?.key_alias ?? "", maxlength: "100"}))),
    h("div", {class: "field"}, h("label", null, "Models", h("input", {name: "models", value: (key?.models ?? ["*"]).join(", ")})), h("p", {class: "hint"}, "Patterns with commas between them, such as llama*, digits.")),
    h("fieldset", {class: "field plain"}, h("legend", null, "Scopes"), h("div", {class: "checks"}, SCOPES.map(scope => h("label", null, h("input", {type: "checkbox", name: "scopes", value: scope, checked: scopes.includes(scope)}), scope)))),
    h("div", {class: "columns"}, LIMITS.map(([name, title]) => h("label", null, title, h("input", {type: "number", min: "1", name, placeholder: "no limit", value: key?.[name] ?? ""})))),
    key ? null : h("div", {class: "field"}, h("label", null, "Expires", h("select", {name: "duration"}, [["", "never"], ["1d", "in a day"], ["30d", "in 30 days"], ["365d", "in a year"]].map(([value, text]) => h("option", {value}, text))))));
  const issued = await ask(key ? `Change ${key.key_alias}` : "Create key", body, {confirm: key ? "Save" : "Create", submit: data => {
    const request = {key_alias: data.get("key_alias"), models: data.get("models").split(",").map(text => text.trim()).filter(Boolean), scopes: data.getAll("scopes")};
    for (const [name] of LIMITS) {
      const value = data.get(name);
      if (value || key) request[name] = value ? Number(value) : null;
    }
    if (key) return post("/key/update", {...request, key: key.token});
    return post("/key/generate", data.get("duration") ? {...request, duration: data.get("duration")} : request);
  }});
  if (issued && !key) await showSecret("The new key", issued.key);
  return issued;
}
