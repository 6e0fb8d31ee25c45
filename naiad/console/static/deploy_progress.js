// A deployment under way: its steps, the log of the worker, and the reason when it fails.

import {get, post} from "./api.js";
import {clock, h, problemBox} from "./dom.js";

const INTERVAL_MS = 500;
const TEXTS = {running: "under way", done: "done", failed: "failed"};

const modelApi = (name, verb) => `/console/api/models/${encodeURIComponent(name)}/${verb}`;

// Shows the deployment in `box` and resolves with its last state.
export async function runDeployment(box, name, spec) {
  const steps = h("ol", {class: "steps"}), lines = h("ol"), result = h("div", {role: "status"});
  const log = h("div", {class: "log", tabindex: "0", role: "region", "aria-label": "Log of the worker"}, lines);
  const details = h("details", null, h("summary", null, "Log of the worker"), log);
  box.replaceChildren(h("section", {class: "card", "aria-label": "Deployment"}, h("h2", null, `Deploying ${name}`), steps, result, details));
  box.scrollIntoView({block: "nearest"});
  let status;
  try {
    status = await post(modelApi(name, "deploy"), spec);
  } catch (error) {
    result.replaceChildren(problemBox(error));
    return {state: "failed", problems: []};
  }
  for (;;) {
    show(status);
    if (status.state !== "running") break;
    await new Promise(resolve => setTimeout(resolve, INTERVAL_MS));
    try {
      status = await get(modelApi(name, "deploy"));
    } catch (error) {
      if (error.status === 404) {
        result.replaceChildren(problemBox({title: "The server was restarted during the deployment", advice: "It put the repository back as it was. Nothing of the form is lost: deploy again.", message: error.message}));
        return {state: "failed", problems: []};
      }
      if (error.status) { result.replaceChildren(problemBox(error)); return {state: "failed", problems: []}; }
    }
  }
  if (status.state === "failed") {
    details.open = status.lines.length > 0;
    const restored = status.is_restored ? "The repository is as it was before." : "Nothing was written to the repository.";
    result.replaceChildren(problemBox({title: status.reason_line || "The deployment failed", advice: restored, message: status.error}));
  } else result.replaceChildren(h("p", {class: "success"}, `${name} serves.`));
  return status;

  function show(state) {
    steps.replaceChildren(...state.steps.map(step => h("li", {class: step.state},
      h("span", null, step.title), h("span", {class: "sub"}, `${TEXTS[step.state]}${step.seconds >= 0.1 ? ` · ${step.seconds} s` : ""}`))));
    if (lines.childElementCount !== state.lines.length) {
      lines.replaceChildren(...state.lines.map(line => h("li", {class: line.severity}, h("time", null, clock(line.time_s)), ` ${line.message}`)));
      log.scrollTop = log.scrollHeight;
    }
    details.hidden = !state.lines.length;
  }
}
