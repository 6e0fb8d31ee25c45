// Chat with language models: one lane per model, so that two models read the same messages side
// by side. A model that calls a tool waits for the result, which the user writes.

import {may} from "./api.js";
import {codePanel} from "./code.js";
import {complete} from "./completion.js";
import {settingsPanel} from "./chat_settings.js";
import {h, milliseconds, number, problemBox} from "./dom.js";
import {traceSwitch} from "./trace_switch.js";

const drafts = new Map();

export function chat(area, rows) {
  const settings = settingsPanel(rows);
  const trace = traceSwitch();
  const lanes = rows.map(row => makeLane(row, lane => { run([lane]); }));
  const input = h("textarea", {rows: "2", "aria-label": "Message",
    placeholder: "Write a message. Enter sends it, Shift+Enter starts a new line."});
  const sendButton = h("button", {type: "submit", class: "primary"}, "Send");
  const stopButton = h("button", {type: "button", hidden: true, onclick: () => abort?.abort()}, "Stop");
  const problem = h("div", {role: "alert"});
  const code = h("div"), codeBox = h("details", {class: "card", hidden: true}, h("summary", null, "Show as code"), code);
  let abort = null;

  async function submit(event) {
    event?.preventDefault();
    const text = input.value.trim();
    if (!text || abort) return;
    if (lanes.some(lane => lane.waits())) {
      showProblem({title: "A tool call waits for its result", message: "Give the result of each call above, then continue.", advice: "Nothing was sent."});
      return;
    }
    let options;
    try {
      options = settings.read();
    } catch (error) {
      showProblem(error);
      return;
    }
    input.value = "";
    lanes.forEach(lane => lane.say(text));
    const hasFailed = await run(lanes, options);
    // A message that no model has read comes back, so that nothing is lost.
    if (hasFailed) input.value ||= text;
  }

  async function run(some, options = settings.read()) {
    problem.replaceChildren();
    abort = new AbortController();
    sendButton.hidden = true;
    stopButton.hidden = false;
    stopButton.focus();
    code.replaceChildren(codePanel(some[0].row, some[0].request(options), []));
    codeBox.hidden = false;
    const results = await Promise.all(some.map(lane => lane.run(options, abort.signal, trace)));
    abort = null;
    stopButton.hidden = true;
    sendButton.hidden = false;
    if (!some.some(lane => lane.waits())) input.focus();
    return results.every(isRead => !isRead);
  }

  function showProblem(error) {
    problem.replaceChildren(problemBox(error));
  }

  input.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  const clear = h("button", {type: "button", class: "small", onclick: () => {
    abort?.abort();
    problem.replaceChildren();
    lanes.forEach(lane => lane.clear());
  }}, "Clear the conversation");
  if (!may("inference")) input.placeholder = "Your key lacks the scope 'inference'.";
  area.append(h("div", {class: "columns side"},
    h("div", null, h("section", {class: "card", "aria-label": "Chat"},
      h("div", {class: `lanes${lanes.length > 1 ? " two" : ""}`}, lanes.map(lane => lane.box)), problem,
      h("form", {class: "composer", onsubmit: submit}, input, sendButton, stopButton), trace.box), codeBox),
    h("section", {class: "card", "aria-label": "Settings"}, settings.box, clear)));
  return () => abort?.abort();
}

function makeLane(row, onResults) {
  const turns = drafts.get(row.name) ?? [];
  drafts.set(row.name, turns);
  const log = h("div", {class: "chat", role: "log", "aria-label": `Conversation with ${row.name}`, tabindex: "0"});
  const figures = h("p", {class: "figures", "aria-label": `Times of ${row.name}`}, "\u00a0");
  const empty = h("div", {class: "empty"}, h("h2", null, `Chat with ${row.name}`),
    h("p", null, "Nothing is stored: the conversation lives in this page."));
  let pending = null;

  function append(role, ...content) {
    empty.remove();
    const element = h("div", {class: `turn ${role}`}, content);
    log.append(element);
    log.scrollTop = log.scrollHeight;
    return element;
  }

  function show(message) {
    if (message.role === "tool") append("tool", h("span", {class: "sub"}, "Result"), h("pre", null, message.content));
    else {
      const element = append(message.role, h("span", null, message.content));
      (message.tool_calls ?? []).forEach(call => element.append(callBox(call)));
    }
  }

  // Asks for the result of each call, then goes on.
  function askForResults(calls) {
    const title = (call, index) => `Result of ${calls.length > 1 ? `call ${index + 1}, ` : ""}${call.function.name}`;
    const fields = calls.map((call, index) => h("textarea", {rows: "2", spellcheck: "false", required: true,
      placeholder: '{"temperature": 21}', "aria-label": title(call, index)}));
    const form = h("form", {class: "turn tool", onsubmit: event => {
      event.preventDefault();
      form.remove();
      pending = null;
      calls.forEach((call, index) => {
        const message = {role: "tool", tool_call_id: call.id, content: fields[index].value};
        turns.push(message);
        show(message);
      });
      onResults(lane);
    }}, calls.map((call, index) => h("div", {class: "field"}, h("label", null, title(call, index), fields[index]))),
    h("div", {class: "row"}, h("button", {type: "submit", class: "small primary"}, "Continue"),
      h("span", {class: "hint"}, "You are the tool: what you write here is what the model reads.")));
    pending = form;
    log.append(form);
    log.scrollTop = log.scrollHeight;
    fields[0].focus();
  }

  const lane = {
    row,
    box: h("div", {class: "lane"}, h("h2", null, row.name), log, figures),
    waits: () => pending !== null,
    say(text) {
      turns.push({role: "user", content: text});
      show(turns.at(-1));
    },
    clear() {
      turns.length = 0;
      pending = null;
      figures.textContent = "\u00a0";
      log.replaceChildren(empty);
    },
    request({system, ...options}) {
      return {model: row.name, messages: [...(system ? [{role: "system", content: system}] : []), ...turns], ...options};
    },
    // Returns whether the model has read the last message.
    async run(options, signal, trace) {
      const content = h("span"), calls = h("div"), note = h("span", {class: "sub"});
      const element = append("assistant", content, calls, note);
      element.setAttribute("aria-busy", "true");
      const update = state => {
        content.textContent = state.content;
        calls.replaceChildren(...state.calls.map(callBox));
        figures.textContent = figuresText(state);
        log.scrollTop = log.scrollHeight;
      };
      let state, end = "", traced = null;
      try {
        traced = await trace.begin();
        state = await complete(this.request(options), signal, update, traced.headers);
        update(state);
        if (state.finish === "length") end = "cut at the limit of tokens";
        if (options.response_format && state.content) end = [jsonNote(state.content), end].filter(Boolean).join(" · ");
      } catch (error) {
        state = error.state ?? {content: "", calls: []};
        if (error.name === "AbortError") end = "stopped";
        else {
          element.classList.add("refused");
          content.replaceChildren(state.content, problemBox(error));
        }
      }
      element.removeAttribute("aria-busy");
      // Next to another lane, the figures are below the lane.
      note.replaceChildren(h("span", {class: "own-figures"}, state.numTokens > 0 ? figuresText(state) : ""), end ? ` ${end}` : "");
      traced?.show(note);
      const isFinished = state.finish && state.calls.length > 0;
      if (state.content || isFinished) {
        turns.push({role: "assistant", content: state.content, ...(isFinished ? {tool_calls: state.calls} : {})});
        if (isFinished) askForResults(state.calls);
        return true;
      }
      if (turns.at(-1)?.role === "user") turns.pop();
      return end === "stopped" || state.finish === "stop";
    },
  };
  log.append(empty);
  turns.forEach(show);
  const last = turns.at(-1);
  if (last?.tool_calls) askForResults(last.tool_calls);
  return lane;
}

function callBox(call) {
  return h("div", {class: "call"}, h("span", {class: "sub"}, "Calls"), h("code", null, call.function.name),
    h("pre", null, pretty(call.function.arguments)));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function jsonNote(text) {
  try {
    JSON.parse(text);
    return "valid JSON";
  } catch {
    return "not complete JSON";
  }
}

const figuresText = state => [
  state.firstMs !== null && `first token after ${milliseconds(Math.round(state.firstMs))}`,
  state.tokensPerS && `${number(state.tokensPerS)} tokens/s`,
  state.numTokens > 0 && `${state.numTokens} tokens`,
  state.totalMs > 0 && `${milliseconds(Math.round(state.totalMs))} in all`,
].filter(Boolean).join(" · ");
