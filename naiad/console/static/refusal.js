// Explains an error: which rule, scope, limit or state of the server refused a request, and what
// to do. The server's own message is always shown below the explanation.

export class Refusal extends Error {
  constructor(status, message, headers, session) {
    super(message);
    this.status = status;
    [this.title, this.advice] = explain(status, message, headers, session);
  }
}

// Rules from the most special to the most general. A rule is [status or null, pattern of the
// message or null, function of (match, facts) that returns [title, advice]].
const RULES = [
  [0, null, () => ["The server does not respond",
    "It may be restarting. The page connects again by itself."]],
  [401, null, () => ["No valid key",
    "The session has ended, or the key was revoked or has expired. Sign in again."]],
  [403, /does not have the scope '([^']+)'/, ([, scope], {key}) => [
    `The key lacks the scope '${scope}'`,
    `${key} may not do this. A key with the scope 'keys' can add the scope on the Keys page, or: `
    + "POST /key/update with \"scopes\"."]],
  [403, /origins are not allowed/, () => ["Refused by the check of origins",
    "Requests that change something must come from a page that this server has served."]],
  [403, /the host name '([^']*)' is not/, ([, host]) => ["Refused by the check of host names",
    `The address of this page names '${host}'. Start the server with --allowed-host ${host}.`]],
  [403, /restricted, expecting header '([^']+)'/, ([, header]) => ["Refused by a restricted API",
    `--http-restricted-api requires the header '${header}', which pages do not send.`]],
  [403, /has the server's token may/, () => ["This page may not change anything",
    "Open the link that the server printed at its start, or that 'naiad console' prints."]],
  [403, /came through a proxy/, () => ["Not through a proxy",
    "The server requires no keys, so it cannot know who is behind the proxy."]],
  [403, /a model is code that runs as the user/, () => ["Only the server's own user may deploy",
    "The server requires no keys, so it does not accept code from other users of the machine."]],
  [403, null, () => ["Not allowed", "A rule of the server refused the request."]],
  [429, /limit of (\d+ requests at a time)/, ([, limit], {key}) => [`Limit reached: ${limit}`,
    `Other requests of ${key} still run. Try again when one of them has ended.`]],
  [429, /limit of ([^;]+)(?:; the request may need (\d+))?/, ([, limit, need], {key, reset}) => [
    `Limit reached: ${limit}`,
    `${need ? `This request may need ${need} tokens; fewer "Most tokens" need less. ` : ""}`
    + `The limit belongs to ${key}${reset ? ` and lets the next request pass ${reset}` : ""}. `
    + "A key with the scope 'keys' can change it on the Keys page."]],
  [429, null, (_, {reset}) => ["Too many requests", reset ? `Try again ${reset}.` : "Try again."]],
  [404, /[Mm]odel:? '([^']+)'/, ([, name], {models}) => models && !models.includes("*") ? [
    `There is no model '${name}' for your key`,
    `The key may use ${models.join(", ")}. A model outside of that does not exist for it; `
    + "a key with the scope 'keys' can change the patterns on the Keys page."] : [
    `There is no model '${name}'`,
    "It is not loaded, or the name is not right. The Models page shows every model."]],
  [404, null, () => ["Not found", "The server has no such thing."]],
  [413, null, () => ["The request is too large", "The server's --http-max-input-size limits it."]],
  [null, /request JSON size of (\d+) bytes exceeds/, ([, size]) => ["The request is too large",
    `It has ${size} bytes of JSON. Send a smaller tensor, or use binary data from a program.`]],
  [null, /explicit model load \/ unload is not allowed/, () => [
    "Models cannot be loaded by request", "The server was started without "
    + "--model-control-mode=explicit. Start it with --model-control-mode=explicit "
    + "--load-model='*'."]],
  [400, /context|maximum.*tokens|positions/i, () => ["The request is not valid",
    "The conversation is longer than the model can read. Clear it, or write less."]],
  [400, null, () => ["The request is not valid", "The server's message names the field."]],
  [503, /Exceeds maximum queue size/, (_, {reset}) => ["The model's queue is full",
    `max_queue_size of its config.pbtxt limits it. ${retry(reset)} More instances empty it faster.`]],
  [503, /timeout expired/, () => ["The request waited too long",
    "Its time-out, or the model's default_timeout_microseconds, ended while it was in the queue."]],
  [503, /requests (?:wait|are open|are being prepared) already, the limit is (\d+)/,
    ([, limit], {reset}) => ["The engine has too many requests",
      `Its limit is ${limit}. ${retry(reset)}`]],
  [503, /no instance of the model|not able to serve/, (_, {reset}) => [
    "No instance of the model serves now",
    `Its workers restart; the log on the Watch page says why they ended. ${retry(reset)}`]],
  [503, /not at ready state/, (_, {reset}) => ["The model is not ready",
    `It is loading or unloading; the Models page shows its state. ${retry(reset)}`]],
  [503, /as many bytes of requests/, (_, {reset}) => ["The server's memory budget is full",
    `--request-memory-byte-size limits the bytes of all open requests. ${retry(reset)}`]],
  [503, /stopping|exiting|shutting/i, () => ["The server is stopping",
    "It finishes what runs and accepts nothing new."]],
  [503, /too little memory/, () => ["The device has too little memory",
    "A shorter conversation or fewer requests at a time need less."]],
  [503, null, (_, {reset}) => ["Not available now", retry(reset)]],
  [501, null, () => ["Not supported", "The server or the model does not offer this."]],
];

const retry = reset => `Try again ${reset || "in a moment"}.`;

function explain(status, message, headers, session) {
  const wait = Number(headers?.get("retry-after"));
  const facts = {
    key: session?.key_id ? `the key '${session.key_name || session.key_id}'` : "the key",
    models: session?.models,
    reset: wait > 0 ? `in ${span(wait)}, at ${time(wait)}` : "",
  };
  for (const [rule, pattern, describe] of RULES) {
    if (rule !== null && rule !== status) continue;
    const match = pattern ? pattern.exec(message) : [];
    if (match) {
      const [title, advice] = describe(match, facts);
      return [title, advice && advice[0].toUpperCase() + advice.slice(1)];
    }
  }
  if (status >= 500) {
    return ["The model or the server failed", "The log on the Watch page may say more."];
  }
  return ["It did not work", ""];
}

const span = seconds => seconds < 120 ? `${seconds} s` :
  seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
const time = seconds => new Date(Date.now() + seconds * 1000).toLocaleTimeString("en-GB",
  seconds > 3600 ? {hour: "2-digit", minute: "2-digit"} : undefined);
