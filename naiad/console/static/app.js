// The frame of the console: which page is shown, signing in, light and dark.

import {send, get, session} from "./api.js";
import {h, problemBox, setText} from "./dom.js";
import {connect, disconnect, listen, live} from "./live.js";

const PAGES = [
  {id: "models", title: "Models", load: () => import("./models.js")},
  {id: "deploy", title: "Deploy", load: () => import("./deploy.js")},
  {id: "playground", title: "Playground", load: () => import("./playground.js")},
  {id: "watch", title: "Watch", load: () => import("./watch.js")},
  {id: "measure", title: "Measure", load: () => import("./measure.js")},
  {id: "keys", title: "Keys", load: () => import("./keys.js")},
  {id: "nodes", title: "Nodes", load: () => import("./nodes.js")},
];
const ownPages = () => PAGES.filter(page => session.info.pages.includes(page.id));  // a server has others than a router
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const connection = document.getElementById("connection");
const account = document.getElementById("account");
let leave = () => {}, shown = "", isSigningIn = false;

async function route() {
  if (!session.info?.is_signed_in) return;
  const [id, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const page = ownPages().find(page => page.id === id) ?? ownPages()[0];
  const parameter = decodeURIComponent(rest.join("/"));
  const isNew = shown !== "";
  shown = `${page.id}/${parameter}`;
  const wanted = shown;
  for (const link of nav.children) {
    if (link.dataset.page === page.id) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({block: "nearest", inline: "nearest"});
    } else link.removeAttribute("aria-current");
  }
  const module = await page.load();
  if (shown !== wanted) return;
  leave();
  main.replaceChildren();
  document.title = `${parameter ? `${parameter} · ` : ""}${page.title} · Naiad`;
  leave = module.show(main, parameter) ?? (() => {});
  if (isNew) { main.focus(); scrollTo(0, 0); }
}

function signIn(refusal) {
  if (isSigningIn) return;
  isSigningIn = true;
  disconnect();
  const problem = h("div", {role: "alert"}, refusal?.message ? problemBox(refusal) : null);
  const field = h("input", {type: "password", name: "key", autocomplete: "current-password", required: true, spellcheck: "false"});
  const form = h("form", {onsubmit: async event => {
    event.preventDefault();
    try {
      await send("POST", "/console/api/session", {key: field.value});
      session.info = await get("/console/api/session");
      isSigningIn = false;
      dialog.close();
      start();
    } catch (error) {
      error.title = "The key was not accepted";
      error.advice = "";
      problem.replaceChildren(problemBox(error));
      field.select();
    }
  }}, h("h1", null, "Sign in"), h("p", {class: "card-note"}, "This server requires an API key. ",
    h("code", null, "naiad key create NAME"), " prints one. The page keeps a session, not the key."), problem,
    h("div", {class: "field"}, h("label", null, "API key", field)),
    h("button", {type: "submit", class: "primary"}, "Sign in"));
  const dialog = h("dialog", {"aria-label": "Sign in"}, form);
  dialog.addEventListener("cancel", event => event.preventDefault());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
}

function start() {
  const info = session.info;
  account.hidden = !info.needs_key;
  account.title = info.key_id ? `Key ${info.key_id} (${info.key_name})` : "";
  if (!nav.childElementCount) {
    nav.append(...ownPages().map(page => h("a", {href: `#/${page.id}`, "data-page": page.id}, page.title)));
    if (info.pages.includes("models")) listen(showConnection);
  }
  if (info.pages.includes("models")) connect();
  if (shown === "") route();
}

function showConnection() {
  connection.classList.toggle("lost", !live.isConnected);
  const text = live.server?.is_ready ? "Ready" : "Not ready";
  connection.title = live.server?.is_ready ? "" : "A model that should serve does not serve";
  setText(connection, live.isConnected ? text : "Connection lost. Reconnecting…");
}

function setUpTheme() {
  const root = document.documentElement;
  const stored = localStorage.getItem("naiad-theme");
  if (stored) root.dataset.theme = stored;
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("naiad-theme", root.dataset.theme);
  });
}

account.addEventListener("click", async () => {
  await send("DELETE", "/console/api/session");
  location.reload();
});
session.onRefused = signIn;
addEventListener("hashchange", route);
setUpTheme();
try {
  session.info = await get("/console/api/session");
  if (session.info.is_signed_in) start();
  else signIn();
} catch (error) {
  main.replaceChildren(problemBox(error));
}
