// The frame of the console: which page is shown, signing in, light and dark.

import {PROOF, adopt, get, keepProof, post, rereadProof, send, session} from "./api.js";
import {ask, h, problemBox, setText} from "./dom.js";
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
const rights = document.getElementById("rights");
let leave = () => {}, shown = "", isSigningIn = false;

async function route() {
  if (!session.info?.is_signed_in) return;
  if (await followLink()) shown = "";
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
      keepProof((await post("/console/api/session", {key: field.value})).secret);
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

// The link that the server prints has its token behind the #, which browsers send to nobody.
async function followLink() {
  const [, token] = location.hash.match(/^#token=(.+)$/) ?? [];
  if (!token) return false;
  history.replaceState(null, "", `${location.pathname}#/`);
  const isAccepted = await adopt(token);
  showRights();
  return isAccepted;
}

function showRights() {
  const {needs_key: needsKey, change_refusal: refusal} = session.info;
  rights.hidden = needsKey || !refusal;
  if (rights.hidden || rights.dataset.refusal === refusal) return;
  rights.dataset.refusal = refusal;
  const hasToken = /server's token/.test(refusal);
  const more = hasToken ? [" Open the link that the server printed at its start, or that ", h("code", null, "naiad console"), " prints."] : ` ${refusal}`;
  rights.replaceChildren(h("span", null, h("strong", null, "This page may look, but not change anything."), more),
    ...(hasToken ? [h("button", {type: "button", class: "small", onclick: enterToken}, "Enter the token")] : []));
}

async function enterToken() {
  const field = h("input", {name: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false"});
  const isAccepted = await ask("Enter the token", h("div", {class: "field"}, h("label", null, "The token, or the whole link", field)), {confirm: "Use it", submit: async data => {
    if (await adopt(data.get("token").trim().replace(/^.*#token=/, ""))) return true;
    throw {title: "The server does not know this token", advice: "Each start of the server makes a new one.", message: "naiad console"};
  }});
  if (isAccepted) { showRights(); shown = ""; route(); }
}

function start() {
  showRights();
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
  showRights();
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
addEventListener("storage", async event => {  // another tab has a new token, or has signed in
  if (event.key !== PROOF || !session.info) return;
  rereadProof();
  session.info = await get("/console/api/session");
  showRights();
});
setUpTheme();
try {
  session.info = await get("/console/api/session");
  await followLink();
  if (session.info.is_signed_in && !(session.info.needs_key && session.info.change_refusal)) start();
  else signIn();
} catch (error) {
  main.replaceChildren(problemBox(error));
}
